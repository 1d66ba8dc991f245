"""Which clients of a site have which channel subscriptions, and when each said so last; a limited number of each.

A client that is not heard has left only if it could have been heard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from nearcast.errors import InputError
from nearcast.protocol.registration import MOST_OF_A_CLIENT

__all__ = ["Renewals", "UninterruptedTime"]

# An agent that does not look for longer was suspended, or has had no processor.
_LONGEST_PAUSE = 3.0
_ADOPTED = ""  # stands for the unknown clients of a row that existed when the agent started


class Renewals:
    """Of subscriptions by name (`<channel>.<key>`). most: that one client may have here."""

    def __init__(self, most: int = MOST_OF_A_CLIENT) -> None:
        self._most = most
        self._renewed: dict[str, dict[str, float]] = {}
        self._counts: Counter[str] = Counter()

    def __contains__(self, name: str) -> bool:
        return name in self._renewed

    def __bool__(self) -> bool:
        return bool(self._renewed)

    def count(self, client: str) -> int:
        """How many subscriptions a client has."""
        return self._counts[client]

    def renew(self, name: str, client: str, now: float) -> None:
        """A client has a subscription. InputError when that is one too many."""
        clients = self._renewed.get(name, {})
        if client not in clients:
            if self._counts[client] >= self._most:
                raise InputError(
                    f"client {client} has {self._most} channel subscriptions at this site, and more are not allowed; "
                    "leave some first"
                )
            self._counts[client] += 1
        clients[client] = now
        self._renewed[name] = clients

    def adopt(self, name: str, now: float) -> None:
        """Somebody had a subscription when the agent started, and has yet to say so."""
        self._renewed[name] = {_ADOPTED: now}
        self._counts[_ADOPTED] += 1

    def leave(self, name: str, client: str) -> bool:
        """A client leaves a subscription; whether nobody has it any more, who had it before."""
        clients = self._renewed.get(name)
        if clients is None:
            return False
        if clients.pop(client, None) is not None:
            self._discount(client)
        if clients:
            return False
        del self._renewed[name]
        return True

    def forget(self, name: str) -> None:
        """Nobody has it."""
        for client in self._renewed.pop(name, {}):
            self._discount(client)

    def expire(self, oldest: float) -> list[str]:
        """Forget what was not renewed since; the subscriptions that nobody has any more."""
        found: list[str] = []
        for name, clients in list(self._renewed.items()):
            gone = [client for client, renewed in clients.items() if renewed < oldest]
            found += [name for client in gone if self.leave(name, client)]
        return found

    def _discount(self, client: str) -> None:
        self._counts[client] -= 1
        if self._counts[client] <= 0:
            del self._counts[client]


class UninterruptedTime:
    """Since when an agent hears its clients without interruption. The clock is passed in."""

    def __init__(self) -> None:
        self._since = self._looked = float("-inf")
        self._link: Hashable = None

    def since(self, link: Hashable, now: float) -> float:
        """Called every second. link: to the broker; another one after a reconnection, None while there is none."""
        if link is None or link != self._link or now - self._looked > _LONGEST_PAUSE:
            self._since = now
        self._link, self._looked = link, now
        return self._since
