"""A coordinator and the console beside the sites of `nearcast up`, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nearcast.auth.auth_folder import AuthFolder
from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.identity.credentials import VARIABLE, read_credentials
from nearcast.nats.tasks import retry
from nearcast.site.supervisor import SupervisedProcess

if TYPE_CHECKING:
    from pathlib import Path

    from nearcast.domain.deployment import Deployment

__all__ = ["running_companions"]

_START_LIMIT, _STOP_LIMIT, _HUNG_AFTER = 60.0, 20.0, 20.0
_INPUT_REFUSED = 2  # the exit code of our commands
_NEARCAST = (sys.executable, "-c", "from nearcast.cli import main; main()")


@contextlib.asynccontextmanager
async def running_companions(deployment: Deployment, folder: Path, port: int) -> AsyncIterator[str]:
    """Yields the line in which the console says where it is, once a coordinator leads. folder: of their logs."""
    stores = [site for site in deployment.sites if site.store is not None]
    if not stores:
        raise InputError("--console needs a site with a store: the coordinator keeps its state there")
    url = next((site.url for site in stores if site.kind == "cloud"), stores[0].url)
    async with (
        _process(deployment, folder, "coordinator", "coordinator", "run", "--url", url, answers=("Metrics", "")),
        _process(
            deployment, folder, "console", "web", "--url", url, "--port", str(port), answers=("Console", "/health")
        ) as line,
    ):
        await _until_led(deployment, folder, url)
        yield line


@contextlib.asynccontextmanager
async def _process(
    deployment: Deployment, folder: Path, user: str, *arguments: str, answers: tuple[str, str]
) -> AsyncIterator[str]:
    """A command of ours with the credentials of a user, kept running; the line in which it says where it listens.

    Its log is a file named after the user. answers: the first word of that line, and the path that is asked whether
    the process hangs.
    """
    credentials, line = _credentials_file(deployment, user), ""
    word, path = answers

    async def ready() -> None:
        nonlocal line
        try:
            async with asyncio.timeout(_START_LIMIT):
                # A file has no event.
                while not re.search(r"^Ready\.", said := process.written(), re.MULTILINE):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise NearcastError(f"it is not ready after {_START_LIMIT:g} s; its log is {process.log_file}") from None
        line = next(one for one in said.splitlines() if one.startswith(f"{word}: "))

    process = SupervisedProcess(
        user,
        [*_NEARCAST, *arguments],
        folder / f"{user}.log",
        ready,
        answers=lambda: _ask(line.split()[1] + path),
        hung_after=_HUNG_AFTER,
        environment={VARIABLE: str(credentials)} if credentials is not None else {},
        refused=_INPUT_REFUSED,
    )
    try:
        process.log_file.unlink(missing_ok=True)  # of an earlier `up`
        await process.start()
        yield line
    finally:
        await process.stop(_STOP_LIMIT)


async def _ask(url: str) -> None:
    """Return when a process of ours answers at its address. Raises OSError when it does not, or with an error."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
        status = (await reader.read()).partition(b"\r\n")[0]
        if b" 200 " not in status:
            raise OSError(f"{url} answers {status.decode(errors='replace')!r}")
    finally:
        writer.close()


def _credentials_file(deployment: Deployment, user: str) -> Path | None:
    if deployment.auth is None:
        return None
    return AuthFolder.open(deployment.auth.folder).credentials_file(user, deployment.auth.tenant)


async def _until_led(deployment: Deployment, folder: Path, url: str) -> None:
    """Wait until a coordinator answers, this one or another: commands typed before that would be told there is none."""
    file = _credentials_file(deployment, "console")
    credentials = read_credentials(file) if file is not None else None
    connection = await open_connection([url], name="up", timeout=_START_LIMIT, credentials=credentials)
    try:
        await retry(
            lambda: call_coordinator(connection, "coordinator", "status", {}, object),
            within=_START_LIMIT,
            on=CoordinatorError,
        )
    except CoordinatorError:
        log = folder / "coordinator.log"
        raise NearcastError(f"no coordinator leads within {_START_LIMIT:g} s; the log of this one is {log}") from None
    finally:
        await connection.close()
