"""What the story tells all who look at the console, by REST."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

__all__ = ["ConsoleAnnouncements"]

_LIMIT = 5.0
_NOT_LOGGED_IN = 401


class ConsoleAnnouncements:
    """Of one console. link: the secret of the link that logs in; a console that was started again asks for it again."""

    def __init__(self, address: str, link: str) -> None:
        self._address, self._link, self._token = address, link, ""

    def show(self, text: str) -> None:
        """Show a sentence above every page. Blocks; OSError when the console does not take it."""
        try:
            self._put(text)
        except urllib.error.HTTPError as error:
            if error.code != _NOT_LOGGED_IN:
                raise
            self._token = ""
            self._put(text)

    def _put(self, text: str) -> None:
        if not self._token:
            self._token = self._ask("POST", "/login/link", {"link": self._link})["token"]
        self._ask("PUT", "/announcement", {"text": text})

    def _ask(self, method: str, path: str, body: dict[str, Any]) -> Any:
        headers = {"content-type": "application/json"}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(
            f"{self._address}/api/v1{path}", json.dumps(body).encode(), headers, method=method
        )
        with urllib.request.urlopen(request, timeout=_LIMIT) as answer:
            return json.loads(answer.read() or b"null")
