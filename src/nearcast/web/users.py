"""Who uses console and REST, and what they may do there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import Request

from nearcast.errors import NearcastError
from nearcast.nats.identity.tokens import tagged_role
from nearcast.web.user_client import UserClient

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["ConsoleUser", "ForbiddenError", "current_user", "open_user"]

_ANYBODY = "local"


class ForbiddenError(NearcastError, PermissionError):
    """The user may see this and not change it."""


@dataclass(frozen=True, eq=False)
class ConsoleUser:
    """Changes are asked for on this user's own connection: brokers judge them, and the audit log has the name.

    logged_in: there is a session that can be ended. client: for messages, on the same connection.
    """

    name: str
    role: str
    connection: Connection
    logged_in: bool = False
    client: UserClient = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", UserClient(self.name, self.connection))

    @property
    def may_change(self) -> bool:
        """Whether it is an operator; brokers do not take changes of others either."""
        return self.role == "operator"

    def require_operator(self) -> None:
        """Refuse all others."""
        if not self.may_change:
            raise ForbiddenError(f"{self.name} is a {self.role} and may change nothing; allowed: role operator")

    async def close(self) -> None:
        """End what the user has under way, and the connection."""
        await self.client.close()
        await self.connection.close()


def open_user(connection: Connection) -> ConsoleUser:
    """Everybody, where there is no login: with the rights of the console's own connection."""
    credentials = connection.credentials
    if credentials is None:
        return ConsoleUser(_ANYBODY, "operator", connection)
    return ConsoleUser(credentials.user, tagged_role(credentials.claims.nats.get("tags", [])), connection)


def current_user(request: Request) -> ConsoleUser:
    """The user of a request or page; every one of them has passed `guard`."""
    user = request.state.user
    assert isinstance(user, ConsoleUser)
    return user
