"""Login by credentials: at a console with TLS beside a secured deployment, by HTTP alone."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.system.web.console_process import console_process
from tests.system.web.secured import SecuredConsole

from nearcast.auth.certificates import make_certificate
from nearcast.auth.push import push_accounts
from nearcast.domain.dataset import DatasetSpec
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.keys import new_key, read_key
from nearcast.nats.rpc import Endpoint, Server
from nearcast.protocol.data_cluster import ColumnsCheck
from nearcast.testing import until

LIMIT = 60.0
CALLS = {"name": "calls", "schema": "id STRING", "source": "fed.calls"}
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured console")]


async def test_without_login_nothing_but_the_login_and_health_is_served(secured_console: SecuredConsole) -> None:
    web = secured_console
    assert (await web.ask("GET", "/health")).body == "ok\n"
    assert "Credentials file" in (await web.ask("GET", "/login")).body
    schema = (await web.ask("GET", "/api/v1/openapi.json", token=await web.token("ada"))).json
    paths = [path.replace("{name}", "x").replace("{identity}", "x") for path in schema["paths"] if "/login" not in path]
    assert "/api/v1/events" in paths
    others = ["/", "/topics", "/plan", "/metrics", "/api/v1/openapi.json", "/docs", "/no-such-page"]
    others += ["/_nicegui_ws/socket.io/?EIO=4&transport=polling", "/_nicegui/x/static/nicegui.js"]
    for path in [*paths, *others]:
        for method in ("GET", "POST", "PUT", "DELETE"):
            found = await web.ask(method, path)
            assert found.status == 401, (method, path, found.body)
        page = await web.ask("GET", path, headers={"accept": "text/html"})
        assert (page.status, page.headers["location"]) == (303, "/login")
    upgrade = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
    key = {"sec-websocket-key": base64.b64encode(b"0" * 16).decode()}
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert (await web.ask("GET", path, headers=upgrade | key)).status == 403
    token = await web.token("eve")
    bearer = {"authorization": f"Bearer {token}"}
    assert (await web.ask("GET", path, headers=upgrade | key | bearer)).status == 101
    evil = {"origin": "https://evil.example"}
    assert (await web.ask("GET", path, headers=upgrade | key | bearer | evil)).status == 403
    assert "nearcast_web_coordinator_up" in await web.metrics()


async def test_an_operator_changes_what_a_reader_only_sees(secured_console: SecuredConsole) -> None:
    web = secured_console
    operator, reader = await web.token("ada"), await web.token("eve")
    for path in ("sites", "topics", "clients", "moves", "datasets", "channels", "coordinator", "dead-letters"):
        found = await web.ask("GET", f"/api/v1/{path}", token=reader)
        assert found.status == 200, (path, found.body)
        assert found.status == (await web.ask("GET", f"/api/v1/{path}", token=operator)).status
    plan = (await web.ask("POST", "/api/v1/plans", token=reader)).json["id"]
    letters = {"topic": "gps.car7", "ids": ["x"]}
    attempts: list[tuple[str, str, Any]] = [
        ("POST", f"/api/v1/plans/{plan}/execute", {"moves": []}),
        ("POST", "/api/v1/dead-letters/retry", letters),
        ("POST", "/api/v1/dead-letters/drop", letters),
        ("POST", "/api/v1/topics", {"name": "extra"}),
        ("DELETE", "/api/v1/topics/gps.*", None),
        ("POST", "/api/v1/topics/gps.*/move", {"to": ["cloud"]}),
        ("POST", "/api/v1/clients/car7/move", {"to": ["cloud"]}),
        ("PUT", "/api/v1/announcement", {"text": "hello"}),
        ("POST", "/api/v1/datasets", CALLS),
        ("DELETE", "/api/v1/datasets/calls", None),
        ("POST", "/api/v1/datasets/calls/columns", {"columns": "note STRING"}),
        ("PUT", "/api/v1/datasets/calls/records", {"records": []}),
        ("POST", "/api/v1/datasets/calls/records", {"records": [{"id": "a"}]}),
        ("POST", "/api/v1/datasets/calls/backfill", {"records": [{"id": "a"}]}),
        ("POST", "/api/v1/topics/gps.car7/messages", {"data": {"n": 1}}),
        ("POST", "/api/v1/channels", {"name": "all_calls", "query": "SELECT id FROM calls"}),
        ("DELETE", "/api/v1/channels/all_calls", None),
        ("POST", "/api/v1/channels/all_calls/test", {}),
        ("POST", "/api/v1/channels/all_calls/replay", {"since": 0}),
    ]
    for method, path, body in attempts:
        refused = await web.ask(method, path, body, token=reader)
        assert refused.status == 403, (path, refused.body)
        assert refused.json["detail"] == "eve is a reader and may change nothing; allowed: role operator"
    message = {"data": {"n": 1}}
    sent = (await web.ask("POST", "/api/v1/topics/gps.car7/messages", message, token=operator)).json
    path = "/api/v1/topics/gps.car7/history?publications=true&last=1"
    for token in (operator, reader):
        (past,) = (await web.ask("GET", path, token=token)).json
        assert (past["id"], past["publisher"]) == (sent["id"], "ada")
    executed = await web.ask("POST", f"/api/v1/plans/{plan}/execute", {"moves": []}, token=operator)
    assert executed.status == 200, executed.body
    assert (await web.ask("POST", "/api/v1/topics", {"name": "extra"}, token=operator)).status == 201
    assert (await web.ask("DELETE", "/api/v1/topics/extra", token=operator)).status == 204
    code, out, err = await web.run("audit", "ls", "--json", "--url", web.url_of_broker, user="ada")
    assert code == 0, err
    noted = {(entry["action"], entry["who"]) for entry in json.loads(out)}
    assert {("plan execute", "ada"), ("topic add", "ada"), ("topic rm", "ada")} <= noted
    assert not {who for _, who in noted} & {"eve", "console", "web"}


async def test_an_operator_adds_datasets_as_itself(secured_console: SecuredConsole) -> None:
    """The data cluster is played by the test, with the credentials of one."""
    web, operator = secured_console, await secured_console.token("ada")
    refused = await web.ask("POST", "/api/v1/datasets", CALLS, token=operator)
    assert (refused.status, "no data cluster answers" in refused.body) == (409, True)
    connection = await open_connection([web.url_of_broker], name="cluster", credentials=web.credentials("cluster"))

    async def columns(request: ColumnsCheck) -> str:
        return f"{request.dataset.schema}, {request.columns}"

    async def dataset(request: DatasetSpec) -> str:
        return ""

    played: dict[str, tuple[Any, Any]] = {
        "check-dataset": (DatasetSpec, dataset),
        "check-columns": (ColumnsCheck, columns),
    }
    server = Server(connection, [Endpoint(verb, subjects.data_cluster(verb), *one) for verb, one in played.items()])
    await server.start()
    try:
        added = await web.ask("POST", "/api/v1/datasets", CALLS, token=operator)
        assert added.status == 201, added.body
        altered = await web.ask("POST", "/api/v1/datasets/calls/columns", {"columns": "note STRING"}, token=operator)
        assert altered.json["schema"] == "id STRING, note STRING"
        assert (await web.ask("DELETE", "/api/v1/datasets/calls", token=operator)).status == 204
    finally:
        await server.stop()
        await connection.close()
    noted = (await web.ask("GET", "/api/v1/audit", token=operator)).json
    own = [(entry["action"], entry["who"]) for entry in noted if entry["what"] == "calls"]
    assert own == [("dataset add", "ada"), ("dataset alter", "ada"), ("dataset rm", "ada")]
    sessions = (await web.ask("GET", "/api/v1/sessions", token=operator)).json
    assert {"user": "ada", "role": "operator", "address": "127.0.0.1"} in sessions


async def test_dead_letters_are_retried_and_noted_as_the_user(secured_console: SecuredConsole) -> None:
    web, operator = secured_console, await secured_console.token("ada")
    await web.publish("gps.bad", {"do": "raise"})

    async def letters() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await web.ask("GET", "/api/v1/dead-letters", token=operator)).json
        return found

    async def there() -> bool:
        return bool(await letters())

    await until(there, LIMIT)
    ids = [letter["id"] for letter in await letters()]
    told = await web.ask("POST", "/api/v1/dead-letters/retry", {"topic": "gps.bad", "ids": ids}, token=operator)
    assert [one["outcome"] for one in told.json] == ["sent"]

    async def tried_twice() -> bool:
        return [letter["attempts"] for letter in await letters()] == [2]

    await until(tried_twice, LIMIT)
    ids = [letter["id"] for letter in await letters()]
    told = await web.ask("POST", "/api/v1/dead-letters/drop", {"topic": "gps.bad", "ids": ids}, token=operator)
    assert told.json["dropped"] == 1
    _, out, _ = await web.run("audit", "ls", "--json", "--url", web.url_of_broker, user="ada")
    noted = [(entry["action"], entry["who"], entry["outcome"]) for entry in json.loads(out)]
    assert ("dead letters retry", "ada", "1 of 1") in noted
    assert ("dead letters drop", "ada", "1 of 1") in noted


async def test_the_session_cookie(secured_console: SecuredConsole) -> None:
    web = secured_console
    login = await web.log_in("ada", cookie=True)
    assert "token" not in login.json
    cookie = login.headers["set-cookie"]
    assert cookie.startswith("__Host-nearcast=")
    assert {"httponly", "secure", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    shown = {"cookie": cookie.partition(";")[0]}
    assert (await web.ask("GET", "/api/v1/session", headers=shown)).json == {"user": "ada", "role": "operator"}
    evil = shown | {"origin": "https://evil.example"}
    refused = await web.ask("POST", "/api/v1/topics", {"name": "forged"}, headers=evil)
    assert (refused.status, "evil.example are refused" in refused.body) == (403, True)
    assert (await web.ask("POST", "/logout", headers=evil)).status == 403
    assert (await web.ask("POST", "/logout", headers=shown)).status == 204
    assert (await web.ask("GET", "/api/v1/session", headers=shown)).status == 401


async def test_who_is_not_let_in(secured_console: SecuredConsole) -> None:
    """Each from an address of its own, since failed logins are limited."""
    web = secured_console
    web.auth.add_user("device", "car9")
    web.auth.add_user("reader", "part", grants=web.some_topics)
    refused = await web.begin(web.credentials("car9").token, source="127.0.0.2")
    assert (refused.status, refused.json["detail"]) == (401, "car9 has role device; allowed: operator and reader")
    refused = await web.begin(web.credentials("part").token, source="127.0.0.2")
    assert refused.json["detail"] == "part was given some topics only; the console shows all"
    refused = await web.begin(web.foreign.token, source="127.0.0.2")
    assert refused.json["detail"] == "ada is of another tenant or deployment than this console"
    for odd in ("x", "a.b.c", web.odd_token(tags=7), web.odd_token(sub=[]), web.odd_token(tags=["role:operator"])):
        assert (await web.begin(odd, source="127.0.0.3")).status in (400, 401)
    # The token of somebody else, and a key of one's own.
    stolen = await web.log_in("ada", key=new_key("user"), source="127.0.0.2")
    assert (stolen.status, "the broker refuses the credentials of ada" in stolen.body) == (401, True)
    # A token that was changed.
    header, _, signature = web.credentials("eve").token.split(".")
    promoted = f"{header}.{web.credentials('ada').token.split('.')[1]}.{signature}"
    forged = await web.log_in("ada", token=promoted, source="127.0.0.2")
    assert (forged.status, "the broker refuses" in forged.body) == (401, True)
    # A challenge is answered once.
    begun = (await web.begin(web.credentials("ada").token, source="127.0.0.4")).json
    signed = base64.b64encode(read_key(web.credentials("ada").seed).sign(begun["challenge"].encode())).decode()
    assert (await web.end(begun["id"], signed, source="127.0.0.4")).status == 200
    assert (await web.end(begun["id"], signed, source="127.0.0.4")).status == 401
    begun = (await web.begin(web.credentials("ada").token, source="127.0.0.4")).json
    assert (await web.end(begun["id"], "c2hvcnQ=", source="127.0.0.4")).status == 401


async def test_failed_logins_are_limited(secured_console: SecuredConsole) -> None:
    web, token = secured_console, secured_console.credentials("car8").token
    codes = [(await web.begin(token, source="127.0.0.9")).status for _ in range(11)]
    assert codes == [401] * 10 + [429]
    last = await web.begin(web.credentials("ada").token, source="127.0.0.9")
    assert (last.status, 1 <= int(last.headers["retry-after"]) <= 60) == (429, True)
    spoofed = await web.begin(token, source="127.0.0.9", headers={"x-forwarded-for": "10.1.2.3"})
    assert spoofed.status == 429
    assert await web.token("ada"), "others log in all the same"


async def test_a_revoked_user_is_out(secured_console: SecuredConsole) -> None:
    web = secured_console
    web.auth.add_user("reader", "mallory")
    token, stream = await web.token("mallory"), await web.open_stream("mallory")
    assert (await web.ask("GET", "/api/v1/sites", token=token)).status == 200
    credentials = web.credentials("mallory")
    web.auth.revoke("mallory", "main")
    await push_accounts(web.auth, web.url_of_broker)

    async def out() -> bool:
        return (await web.ask("GET", "/api/v1/sites", token=token)).status == 401

    await until(out, LIMIT)
    await asyncio.wait_for(asyncio.to_thread(stream.read_to_end), LIMIT)
    again = await web.log_in("mallory", credentials=credentials)
    assert (again.status, "the broker refuses the credentials of mallory" in again.body) == (401, True)


async def test_an_expired_user_is_out(secured_console: SecuredConsole) -> None:
    web = secured_console
    web.auth.add_user("operator", "temp", expires=int(time.time()) + 12)
    token = await web.token("temp")
    assert (await web.ask("GET", "/api/v1/session", token=token)).status == 200

    async def out() -> bool:
        return (await web.ask("GET", "/api/v1/session", token=token)).status == 401

    await until(out, LIMIT)
    again = await web.log_in("temp")
    assert (again.status, "the credentials of temp (a key elsewhere) expired on" in again.body) == (401, True)


async def test_a_renewed_certificate_is_taken(secured_console: SecuredConsole) -> None:
    web = secured_console
    before = await asyncio.to_thread(web.certificate)
    make_certificate(web.auth.ca_file.parent, "cloud", ["127.0.0.1"])

    async def renewed() -> bool:
        return await asyncio.to_thread(web.certificate) != before

    await until(renewed, LIMIT)
    assert (await web.ask("GET", "/health")).status == 200


async def test_plain_http_is_not_served(secured_console: SecuredConsole) -> None:
    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", secured_console.port, timeout=10)
        connection.request("GET", "/health")
        connection.getresponse()

    with pytest.raises((http.client.HTTPException, OSError)):
        await asyncio.to_thread(ask)


async def test_the_command_line_logs_in(secured_console: SecuredConsole) -> None:
    web = secured_console
    code, token, err = await web.run("auth", "login", web.url, user="eve")
    assert code == 0, err
    assert (await web.ask("GET", "/api/v1/session", token=token.strip())).json == {"user": "eve", "role": "reader"}
    code, _, err = await web.run("auth", "login", web.url, user="car8")
    assert (code, "car8 has role device; allowed: operator and reader" in err) == (1, True)
    code, _, err = await web.run("auth", "login", web.url)
    assert (code, "there are no credentials" in err) == (2, True)


async def test_beyond_loopback_login_and_tls_are_needed(secured_console: SecuredConsole) -> None:
    web = secured_console
    code, _, err = await web.run("web", "--host", "0.0.0.0")
    assert (code, err.strip()) == (
        2,
        "nearcast: --host is '0.0.0.0'; beyond loopback the console needs credentials (NEARCAST_CREDS) for a login and "
        "--certificate and --key for TLS",
    )
    code, _, err = await web.run("web", "--host", "0.0.0.0", user="console")
    assert (code, "needs --certificate and --key for TLS" in err) == (2, True)
    tls = ("--certificate", str(web.tls / "cloud.pem"), "--key", str(web.tls / "cloud.key"))
    code, _, err = await web.run("web", "--host", "0.0.0.0", "--no-login", *tls, user="console")
    assert (code, "needs credentials" in err) == (2, True)
    wrong = ("--certificate", str(web.tls / "cloud.pem"), "--key", str(web.tls / "edge.key"))
    code, _, err = await web.run("web", *wrong, user="console")
    assert (code, "are no certificate and its key" in err) == (2, True)


async def test_a_link_logs_in_as_the_user_of_the_console(secured_console: SecuredConsole) -> None:
    web = secured_console
    async with console_process("--url", web.url_of_broker, "--link", **web.environment("ada")) as said:
        address, (line,) = said[0].split()[1], [line for line in said if "#link=" in line]
        assert line.startswith(f"Log in with this link: {address}/login#link=")
        link = line.strip().rpartition("=")[2]
        assert len(link) >= 32
        code, _ = await post(f"{address}/api/v1/login/link", {"link": f"{link}x"})
        assert code == 401
        code, told = await post(f"{address}/api/v1/login/link", {"link": link})
        assert (code, told["user"], told["role"]) == (200, "ada", "operator")
        bearer = {"authorization": f"Bearer {told['token']}"}
        assert (await post(f"{address}/api/v1/plans", {}, bearer))[0] == 201
        assert (await post(f"{address}/api/v1/plans", {}, {"authorization": f"Bearer {link}"}))[0] == 401
        for _ in range(9):  # ten may fail a minute
            code, _ = await post(f"{address}/api/v1/login/link", {"link": "guessed"})
            assert code == 401
        assert (await post(f"{address}/api/v1/login/link", {"link": link}))[0] == 429
    assert (await web.ask("POST", "/api/v1/login/link", {"link": link}, source="127.0.0.12")).status == 401
    code, _, err = await web.run("web", "--link", "--url", web.url_of_broker)
    assert (code, "--link needs credentials" in err) == (2, True), err


async def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    def ask() -> tuple[int, Any]:
        given = {"content-type": "application/json", **(headers or {})}
        request = urllib.request.Request(url, json.dumps(body).encode(), given)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    return await asyncio.to_thread(ask)
