"""Who may use console and REST. On loopback everybody; other addresses are refused until there are credentials.

`authenticate` is the one place through which every request passes: credentials are checked here when there are some.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from fastapi import HTTPException, Request

from nearcast.errors import InputError

__all__ = ["ALLOWED_HOSTS", "authenticate", "check_host"]

ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]  # another name in the request: a page of another site asks


async def authenticate(request: Request) -> str:
    """The user of a request. A page of another origin may not use a browser on this machine as its hands."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, f"requests of pages of {origin} are refused")
    return "local"


def check_host(host: str) -> str:
    """Return the address if console and REST may listen there."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise InputError(f"--host is {host!r}; allowed: a loopback address, because there is no login yet")
    return host
