"""What the story tells the console, which asks for a login, and again after it was started anew."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.error
from collections.abc import Iterator
from typing import Any

import pytest

from nearcast.lab.demo.console_announcements import ConsoleAnnouncements


class PlayedConsole:
    """Takes announcements of who has the present token. tokens: those that were given out."""

    def __init__(self) -> None:
        console = self
        self.tokens: list[str] = []
        self.shown: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if self.path != "/api/v1/login/link" or self.body() != {"link": "right"}:
                    self.answer(401, {"detail": "no"})
                    return
                console.tokens.append(f"token{len(console.tokens)}")
                self.answer(200, {"user": "admin", "role": "operator", "token": console.tokens[-1]})

            def do_PUT(self) -> None:
                body = self.body()
                if not console.tokens or self.headers["authorization"] != f"Bearer {console.tokens[-1]}":
                    self.answer(401, {"detail": "no"})
                    return
                console.shown.append(body["text"])
                self.answer(204, None)

            def body(self) -> Any:
                return json.loads(self.rfile.read(int(self.headers["content-length"])))

            def answer(self, code: int, body: Any) -> None:
                self.send_response(code)
                self.end_headers()
                if body is not None:
                    self.wfile.write(json.dumps(body).encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def console() -> Iterator[PlayedConsole]:
    found = PlayedConsole()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_it_logs_in_once_and_again_when_its_session_is_over(console: PlayedConsole) -> None:
    announcements = ConsoleAnnouncements(console.url, "right")
    announcements.show("Act 1")
    announcements.show("Act 2")
    assert console.tokens == ["token0"]
    console.tokens.append("of a console that was started again")
    announcements.show("Act 3")
    assert console.shown == ["Act 1", "Act 2", "Act 3"]


def test_a_link_that_is_refused_is_an_error(console: PlayedConsole) -> None:
    with pytest.raises(urllib.error.HTTPError):
        ConsoleAnnouncements(console.url, "wrong").show("Act 1")
    assert console.shown == []
