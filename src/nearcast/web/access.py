"""Where console and REST may listen: open on loopback only; beyond it with login and TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.errors import InputError
from nearcast.nats.identity.tokens import tagged_role
from nearcast.site.security import is_loopback

if TYPE_CHECKING:
    from nearcast.nats.identity.credentials import Credentials

__all__ = ["LOOPBACK_NAMES", "ServerTls", "check_access", "check_link"]

LOOPBACK_NAMES = ["localhost", "127.0.0.1", "[::1]"]  # another name in the request: a page of another site asks


@dataclass(frozen=True)
class ServerTls:
    """The files that the server proves its name with, such as those of `nearcast auth tls`."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Refuse what cannot be used."""
        for file in (self.certificate, self.key):
            if not file.is_file():
                raise InputError(f"{file} is not there; certificates are made with: nearcast auth tls")
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, OSError) as error:
            raise InputError(f"{self.certificate} and {self.key} are no certificate and its key: {error}") from None

    @property
    def changed(self) -> tuple[float, float]:
        """When the files were written."""
        return self.certificate.stat().st_mtime, self.key.stat().st_mtime


def check_access(host: str, *, login: bool, tls: bool) -> None:
    """Refuse to listen where strangers would be let in, or could listen to who is let in."""
    if is_loopback(host) or (login and tls):
        return
    missing = [] if login else ["credentials (NEARCAST_CREDS) for a login"]
    missing += [] if tls else ["--certificate and --key for TLS"]
    raise InputError(f"--host is {host!r}; beyond loopback the console needs {' and '.join(missing)}")


def check_link(host: str, credentials: Credentials | None) -> None:
    """Refuse a link that logs in where it would not work, or could be used by other machines."""
    if not is_loopback(host):
        raise InputError(f"--host is {host!r}; a link that logs in is for loopback only")
    if credentials is None:
        raise InputError("--link needs credentials (NEARCAST_CREDS) of an operator or a reader, and a login")
    role = tagged_role(credentials.claims.nats.get("tags", []))
    if role not in ("operator", "reader"):
        raise InputError(f"--link: {credentials.user} has role {role or 'none'}; allowed: operator and reader")
