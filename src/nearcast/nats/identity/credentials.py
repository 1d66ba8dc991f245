"""Credentials files: a user's token and key, and the certificate authority of the brokers it connects to.

The form is that of NATS's `.creds` files; the certificate stands behind what the `nats` tool reads.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearcast.errors import InputError
from nearcast.nats.identity.keys import read_key
from nearcast.nats.identity.tokens import Claims, read_token

__all__ = ["VARIABLE", "Credentials", "credentials_file", "given_credentials", "read_credentials", "write_secret"]

VARIABLE = "NEARCAST_CREDS"
"""Names the credentials file of processes that are given none."""
_BLOCK = re.compile(r"-+BEGIN ([A-Z ]+)-+\s+(.*?)\s+-+END \1-+", re.DOTALL)
_JWT, _SEED, _CA = "NATS USER JWT", "USER NKEY SEED", "CERTIFICATE"


@dataclass(frozen=True)
class Credentials:
    """What a user proves its identity with. path: read again at each connection, so that a renewed file is taken."""

    path: Path
    token: str
    seed: str
    ca: str = ""

    @property
    def claims(self) -> Claims:
        """What the token says."""
        return read_token(self.token)

    @property
    def user(self) -> str:
        """The user's name."""
        return self.claims.name

    def options(self) -> dict[str, Any]:
        """How nats-py connects with these: token, signature, inboxes of this user's own, and TLS."""
        options: dict[str, Any] = {
            "user_jwt_cb": lambda: bytearray(read_credentials(self.path).token.encode()),
            "signature_cb": self._sign,
            "inbox_prefix": f"_INBOX.{self.user}".encode(),
        }
        if self.ca:
            options["tls"] = ssl.create_default_context(cadata=self.ca)
        return options

    async def prepare(self, challenge: str) -> None:
        """Called with the broker's challenge before `options` must sign it."""

    def refuse_expired(self) -> None:
        """Say so before a broker does, in fewer words."""
        expires = self.claims.expires
        if expires and expires <= time.time():
            when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(expires))
            raise InputError(f"the credentials of {self.user} ({self.path}) expired on {when}; ask for new ones")

    def _sign(self, nonce: str) -> bytes:
        return base64.b64encode(read_key(read_credentials(self.path).seed).sign(nonce.encode()))


def read_credentials(path: str | Path) -> Credentials:
    """Read a file made by `nearcast auth add`."""
    file = Path(path).expanduser()
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InputError(f"credentials {file} cannot be read: {why}") from None
    blocks: dict[str, str] = {}
    for found in _BLOCK.finditer(text):
        blocks.setdefault(found[1], found[0] if found[1] == _CA else found[2])
    if _JWT not in blocks or _SEED not in blocks:
        raise InputError(f"{file} has no credentials; allowed: a file made by `nearcast auth add`")
    ca = "\n".join(found[0] for found in _BLOCK.finditer(text) if found[1] == _CA)
    credentials = Credentials(file, blocks[_JWT], blocks[_SEED], ca)
    try:
        _ = credentials.claims
    except InputError as error:
        raise InputError(f"credentials {file}: {error}") from None
    return credentials


def given_credentials(path: str | Path | None = None) -> Credentials | None:
    """The credentials of a file, or of the one that NEARCAST_CREDS names; none when neither is given."""
    found = path if path is not None else os.environ.get(VARIABLE) or None
    return read_credentials(found) if found is not None else None


def credentials_file(token: str, seed: str, ca: str = "") -> str:
    """The text of a credentials file."""
    return (
        f"-----BEGIN {_JWT}-----\n{token}\n------END {_JWT}------\n\n"
        "Keep this file secret: who has it is the user.\n\n"
        f"-----BEGIN {_SEED}-----\n{seed}\n------END {_SEED}------\n" + (f"\n{ca.strip()}\n" if ca else "")
    )


def write_secret(path: Path, text: str) -> None:
    """Write a file that only its owner may read, at no moment half."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    unfinished.replace(path)
