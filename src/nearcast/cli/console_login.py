"""The login of programs to the console: the key of a credentials file signs the challenge, a token comes back."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from nearcast.errors import InputError, NearcastError
from nearcast.nats.identity.credentials import Credentials
from nearcast.nats.identity.keys import read_key

__all__ = ["log_in"]

_LIMIT = 30.0


def log_in(console: str, credentials: Credentials) -> dict[str, Any]:
    """User, role and session token at the console with this address."""
    parts = urlsplit(console)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"the console is {console!r}; allowed: an address such as https://127.0.0.1:8600")
    address = f"{parts.scheme}://{parts.netloc}/api/v1/login"
    credentials.refuse_expired()
    begun = _post(f"{address}/challenge", {"token": credentials.token}, credentials.ca)
    signature = read_key(credentials.seed).sign(str(begun["challenge"]).encode())
    return _post(address, {"id": begun["id"], "signature": base64.b64encode(signature).decode()}, credentials.ca)


def _post(url: str, body: dict[str, str], ca: str) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    # The authority of the deployment, which `nearcast auth tls` made, besides those of the machine.
    context = ssl.create_default_context()
    if ca:
        context.load_verify_locations(cadata=ca)
    try:
        with urllib.request.urlopen(request, timeout=_LIMIT, context=context) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except urllib.error.HTTPError as error:
        raise NearcastError(f"the console refuses the login: {_detail(error)}") from None
    except (OSError, ValueError) as error:
        raise NearcastError(f"{url} cannot be asked: {getattr(error, 'reason', error)}") from None


def _detail(error: urllib.error.HTTPError) -> str:
    if error.code == 404:
        return "it has no login; it was started without credentials"
    try:
        return str(json.loads(error.read())["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}"
