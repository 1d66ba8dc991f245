"""Tell running brokers of changed accounts: revocations, new signing keys, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError

from nearcast.auth.auth_folder import SYSTEM
from nearcast.errors import NearcastError
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import read_credentials

if TYPE_CHECKING:
    from nearcast.auth.auth_folder import AuthFolder

__all__ = ["push_accounts"]

_LIMIT = 5.0


async def push_accounts(folder: AuthFolder, url: str) -> list[str]:
    """Send all tenants' tokens to the broker at an address, which tells the others. Returns the tenants."""
    credentials = read_credentials(folder.credentials_file("push", SYSTEM))
    connection = await open_connection([url], name="nearcast-auth", timeout=_LIMIT, credentials=credentials)
    try:
        for tenant in folder.tenants:
            token = folder.account_file(tenant).read_bytes()
            try:
                reply = await connection.request("$SYS.REQ.CLAIMS.UPDATE", token, timeout=_LIMIT)
            except (NatsError, TimeoutError) as error:
                raise NearcastError(
                    f"the broker at {url} did not take tenant {tenant}: {error or 'timed out'}"
                ) from error
            answer: dict[str, Any] = msgspec.json.decode(reply.data)
            if "error" in answer:
                raise NearcastError(f"the broker at {url} refuses tenant {tenant}: {answer['error']}")
    finally:
        await connection.close()
    return folder.tenants
