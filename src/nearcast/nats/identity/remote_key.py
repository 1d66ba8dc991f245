"""Credentials whose key is elsewhere: its holder signs the challenge of the broker, and the key is never seen here."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearcast.errors import InputError
from nearcast.nats.identity.credentials import Credentials

__all__ = ["RemoteKeyCredentials"]

_SIGNATURE_BYTES = 64


@dataclass(frozen=True)
class RemoteKeyCredentials(Credentials):
    """Good for one connection: a second one has another challenge, so a connection that is lost stays lost.

    challenge: done when the broker has sent it. signed: to be set with the signature of it.
    """

    challenge: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    signed: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @classmethod
    def of_token(cls, token: str, ca: str) -> RemoteKeyCredentials:
        """Of the user with this token. ca: the authority of the broker that is connected to."""
        return cls(Path("a key elsewhere"), token, "", ca)

    def options(self) -> dict[str, Any]:
        """As of all credentials, but for the signature, and without reconnection."""
        own = {"user_jwt_cb": lambda: bytearray(self.token.encode()), "signature_cb": lambda _: self.signed.result()}
        return {**super().options(), **own, "allow_reconnect": False}

    async def prepare(self, challenge: str) -> None:
        """Hand the challenge out, and wait for its signature."""
        if not challenge:  # it would take anybody for anybody
            raise PermissionError("the broker asks for no credentials")
        self.challenge.set_result(challenge)
        await self.signed

    def sign(self, signature: str) -> None:
        """Take the signature, in base64."""
        try:
            data = base64.b64decode(signature, validate=True)
        except ValueError:
            data = b""
        if len(data) != _SIGNATURE_BYTES:
            raise InputError(f"the signature is not {_SIGNATURE_BYTES} bytes in base64")
        self.signed.set_result(base64.b64encode(data))
