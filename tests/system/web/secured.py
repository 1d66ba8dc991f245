"""A console with login and TLS beside a secured deployment, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import os
import ssl
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.conftest import PROCESSORS
from tests.system.control import QUICK
from tests.system.test_cli import NEARCAST
from tests.system.web.console_process import console_process

import nearcast
from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.roles import Grants
from nearcast.coordinator.leadership import Coordinator
from nearcast.domain.topic import TopicSpec
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import VARIABLE, Credentials, read_credentials
from nearcast.nats.identity.keys import KeyPair, new_key, read_key
from nearcast.nats.identity.tokens import UNLIMITED, user_token
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import RunningSites, sites, until


@dataclass(frozen=True)
class Answered:
    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Stream:
    """An answer that does not end by itself."""

    def __init__(self, connection: http.client.HTTPSConnection, answer: http.client.HTTPResponse) -> None:
        self._connection, self._answer = connection, answer

    def read_to_end(self) -> None:
        with contextlib.suppress(http.client.IncompleteRead):
            while self._answer.read(65536):
                pass
        self._connection.close()


class SecuredConsole:
    """Users: ada is an operator, eve a reader, car8 a device. Requests come from any loopback address."""

    some_topics = Grants((), ("gps.car7",))

    def __init__(self, url: str, metrics: str, running: RunningSites, foreign: Credentials) -> None:
        assert running.auth is not None
        self.url, self._metrics, self.foreign = url, metrics, foreign
        self.port = int(url.rpartition(":")[2])
        self.auth: AuthFolder = running.auth
        self.tls, self.url_of_broker, self._running = self.auth.ca_file.parent, running.url("cloud"), running

    def credentials(self, user: str) -> Credentials:
        return read_credentials(self.auth.credentials_file(user, "main"))

    def environment(self, user: str) -> dict[str, str]:
        return {VARIABLE: str(self.auth.credentials_file(user, "main"))}

    async def run(self, *arguments: str, user: str = "") -> tuple[int, str, str]:
        """Exit code, standard output and error of a command of a user."""
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        process = await asyncio.create_subprocess_exec(
            *NEARCAST, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env=environment | (self.environment(user) if user else {}),
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 120)
        return process.returncode or 0, out.decode(), err.decode()

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str = "",
        source: str = "127.0.0.1",
        headers: dict[str, str] | None = None,
    ) -> Answered:
        given = {"content-type": "application/json", **(headers or {})}
        if token:
            given["authorization"] = f"Bearer {token}"

        def answer() -> Answered:
            connection = self._connect(source)
            try:
                connection.request(method, path, None if body is None else json.dumps(body), given)
                found = connection.getresponse()
                text = "" if found.status == 101 else found.read().decode()
                return Answered(found.status, {name.lower(): value for name, value in found.getheaders()}, text)
            finally:
                connection.close()

        return await asyncio.to_thread(answer)

    async def begin(self, token: str, source: str = "127.0.0.1", headers: dict[str, str] | None = None) -> Answered:
        return await self.ask("POST", "/api/v1/login/challenge", {"token": token}, source=source, headers=headers)

    async def end(self, identity: str, signature: str, source: str = "127.0.0.1", *, cookie: bool = False) -> Answered:
        body = {"id": identity, "signature": signature, "cookie": cookie}
        return await self.ask("POST", "/api/v1/login", body, source=source)

    async def log_in(
        self,
        user: str,
        *,
        cookie: bool = False,
        token: str = "",
        key: KeyPair | None = None,
        credentials: Credentials | None = None,
        source: str = "127.0.0.1",
    ) -> Answered:
        """As this user; with another token or key."""
        own = credentials or self.credentials(user)
        begun = await self.begin(token or own.token, source)
        if begun.status != 200:
            return begun
        signature = (key or read_key(own.seed)).sign(begun.json["challenge"].encode())
        return await self.end(begun.json["id"], base64.b64encode(signature).decode(), source, cookie=cookie)

    async def token(self, user: str) -> str:
        found = await self.log_in(user)
        assert found.status == 200, found.body
        return str(found.json["token"])

    async def open_stream(self, user: str) -> Stream:
        """The events, as this user, after the first has come."""
        token = await self.token(user)

        def opened() -> Stream:
            connection = self._connect("127.0.0.1")
            connection.request("GET", "/api/v1/events", headers={"authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            assert answer.readline() == b"event: state\n"
            return Stream(connection, answer)

        return await asyncio.to_thread(opened)

    async def publish(self, topic: str, data: Any) -> None:
        async with nearcast.connect(self.url_of_broker, credentials=self.credentials("ada").path) as client:
            await client.publish(topic, data)

    async def metrics(self) -> str:
        def read() -> str:
            with urllib.request.urlopen(self._metrics, timeout=60) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(read)

    def certificate(self) -> str:
        """The certificate that a new connection gets."""
        connection = self._connect("127.0.0.1")
        try:
            connection.connect()
            return hashlib.sha256(connection.sock.getpeercert(binary_form=True)).hexdigest()  # type: ignore[union-attr]
        finally:
            connection.close()

    def odd_token(self, **parts: Any) -> str:
        """Signed by a key of one's own, with parts that no token of ours has."""
        key = new_key("account")
        token = user_token(
            key, key.public, new_key("user").public, "ada", publish=[], subscribe=[">"], limits=UNLIMITED, tags=[]
        )
        header, body, signature = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=="))
        claims["nats"] |= {"issuer_account": self.credentials("ada").claims.nats["issuer_account"], **parts}
        changed = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"{header}.{changed}.{signature}"

    def _connect(self, source: str) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=self.auth.ca_file)
        return http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=60, context=context, source_address=(source, 0)
        )


@contextlib.asynccontextmanager
async def running_secured_console(folder: Path) -> AsyncIterator[SecuredConsole]:
    """Sites edge and cloud with JWT and TLS, a coordinator, and a console with its own credentials and a login."""
    (folder / "city_processors.py").write_text(PROCESSORS)
    foreign = AuthFolder.create(folder / "foreign")
    topic = TopicSpec("gps.*", ("edge",), ("edge", "cloud"), quorum=1, bound_ms=200)
    async with sites(
        topic, processors=["city_processors"], search_path=[str(folder)], folder=folder, secured=True,
        report_seconds=0.5,
    ) as running:  # fmt: skip
        auth = running.auth
        assert auth is not None
        for role, user in (("operator", "ada"), ("reader", "eve"), ("device", "car8")):
            auth.add_user(role, user)
        settings = type(QUICK)(lease=6.0, site_lost_after=60.0, client_lost_after=60.0, automatic=False)
        credentials = read_credentials(auth.credentials_file("coordinator", "main"))
        connection = await open_connection([running.url("cloud")], name="coordinator", credentials=credentials)
        coordinator = Coordinator(connection, "cloud", settings)
        task = asyncio.create_task(coordinator.run())
        try:
            await until(coordinator.leading.is_set, 60)
            tls, user = auth.ca_file.parent, str(auth.credentials_file("console", "main"))
            async with console_process(
                "--host", "0.0.0.0", "--url", running.url("cloud"), "--certificate", str(tls / "cloud.pem"),
                "--key", str(tls / "cloud.key"), **{VARIABLE: user},
            ) as said:  # fmt: skip
                url, metrics = said[0].split()[1].replace("0.0.0.0", "127.0.0.1"), said[1].split()[1]
                yield SecuredConsole(url, metrics, running, read_credentials(foreign.add_user("operator", "ada")))
        finally:
            await cancel_and_wait(task)
            await connection.close()
