"""How much users and tenants may send through one broker: token buckets, and what is closed when one is empty.

The broker counts what each connection sent; here it is added up by user and tenant. A user may send a tenth more than
its limit, and a little for requests and reports: the client library keeps to the limit by itself, so that what is
closed here is no client of ours, or one of several with the same credentials.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nearcast.nats.identity.tokens import UNLIMITED, AccessLimits

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CloseConnection", "Sender", "Sent", "Tenant", "TokenBucket", "UsageLimits"]

_SUSPENDED_S, _LONGEST_SUSPENSION_S = 10.0, 600.0  # twice as long each time, until an hour without
_FORGOTTEN_AFTER_S = 3600.0
_ALLOWANCE = 1.1
_REQUESTS_PER_S, _REQUEST_BYTES = 20.0, 20_000.0  # reports, renewals, requests
_BURST_S = 30.0  # what a client that was away sends at once when it is back
_BURST_MESSAGES, _BURST_BYTES = 4096.0, 8e6  # or this much: what the client library has in flight
_USERS_COUNTED = 100
_MADE_UP = re.compile("[0-9A-Za-z]{22}")  # by the broker


@dataclass(frozen=True)
class Tenant:
    """An account. name: the tenant's."""

    name: str
    limits: AccessLimits = UNLIMITED


@dataclass(frozen=True)
class Sender:
    """A connection of a user. account: the tenant's public key. trusted: a part of a site, which has no limits.

    mqtt_client: the client id of an MQTT device.
    """

    account: str
    user: str
    limits: AccessLimits = UNLIMITED
    trusted: bool = False
    mqtt_client: str = ""

    @property
    def uses_own_mqtt_client(self) -> bool:
        """A broker closes the older of two connections with one client id, and lets the newer have its session.

        So the id must name the user, or be one that the broker made up for a device that sent none.
        """
        found = self.mqtt_client
        return not found or found == self.user or found.startswith(f"{self.user}/") or bool(_MADE_UP.fullmatch(found))

    @property
    def key(self) -> tuple[str, str]:
        """What tells the user from others."""
        return self.account, self.user


@dataclass(frozen=True)
class Sent:
    """What a connection sent since it opened."""

    messages: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class CloseConnection:
    """A connection is to be closed. reason: for its user; empty if the user was told before. seconds: for how long."""

    cid: int
    sender: Sender
    reason: str = ""
    seconds: float = 0.0


class TokenBucket:
    """Fills at the rate of a limit, and holds what that makes in half a minute. rate: -1 for no limit.

    extra: what is allowed besides, each second. burst: what it holds at least.
    """

    def __init__(self, rate: float, extra: float, burst: float, now: float) -> None:
        self._limited, self._rate = rate >= 0, _ALLOWANCE * rate + extra
        self._capacity = max(burst, _BURST_S * self._rate)
        self._level, self._at = self._capacity, now

    def take(self, amount: float, now: float) -> bool:
        """Whether so much is within the limit."""
        self._level = min(self._capacity, self._level + self._rate * (now - self._at)) - amount
        self._at, over = now, self._level < 0
        if over:
            self._level = 0.0  # who was suspended for it owes nothing more
        return not (self._limited and over)


class _Account:
    """The buckets of a user or tenant, and what it sent since the last look."""

    def __init__(self, limits: AccessLimits, now: float) -> None:
        self.limits = limits
        self._messages = TokenBucket(limits.messages_per_second, _REQUESTS_PER_S, _BURST_MESSAGES, now)
        self._bytes = TokenBucket(limits.bytes_per_second, _REQUEST_BYTES, _BURST_BYTES, now)

    def excess(self, messages: int, size: int, now: float) -> str:
        """What is above the limit, in words; nothing if all is within it."""
        too_many, too_much = not self._messages.take(messages, now), not self._bytes.take(size, now)
        if too_many:
            return f"more than {self.limits.messages_per_second:g} messages/s"
        return f"more than {self.limits.bytes_per_second:g} bytes/s" if too_much else ""


@dataclass
class _Open:
    sender: Sender
    since: float
    seen: Sent = field(default_factory=Sent)


class UsageLimits:
    """Of one broker. closed: connections that were closed for a limit, by account and user. Time is in seconds."""

    def __init__(self) -> None:
        self._tenants: Mapping[str, Tenant] = {}
        self._open: dict[int, _Open] = {}
        self._buckets: dict[tuple[str, str], _Account] = {}
        self._messages: Counter[tuple[str, str]] = Counter()  # by user, sent since the last look
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._suspended: dict[tuple[str, str], tuple[float, float]] = {}  # until when, and for how long
        self.closed: Counter[tuple[str, str]] = Counter()

    @property
    def needed(self) -> bool:
        """Whether anybody connected has a limit that must be watched."""
        limited = any(_is_limited(one.sender.limits) for one in self._open.values())
        return limited or any(_is_limited(tenant.limits) for tenant in self._tenants.values())

    def set_tenants(self, tenants: Mapping[str, Tenant]) -> None:
        """The tenants by account; their limits may have changed."""
        for account, tenant in tenants.items():
            if (before := self._tenants.get(account)) is not None and before.limits != tenant.limits:
                self._buckets.pop((account, ""), None)
        self._tenants = dict(tenants)

    def forget_connections(self) -> None:
        """Nothing is known of who is connected: the broker may be a new process, whose numbers start again."""
        self._open.clear()

    def connected(self, cid: int, sender: Sender, now: float, sent: Sent | None = None) -> list[CloseConnection]:
        """A connection opened. sent: before anybody looked, which does not count."""
        if sender.trusted:
            return []
        self._open[cid] = _Open(sender, now, sent or Sent())
        if _is_limited(sender.limits) and sender.key not in self._buckets:  # it may be gone at the next look
            self._buckets[sender.key] = _Account(sender.limits, now)
        if sender.key in self._suspended and self._suspended[sender.key][0] > now:
            return [self._close(cid, sender)]
        if not sender.uses_own_mqtt_client:
            self._suspend(sender.key, now)
            reason = (
                f"its MQTT client id is {sender.mqtt_client[:80]!r}; allowed: {sender.user}, {sender.user}/…, or none"
            )
            return [self._close(cid, sender, reason, self._suspended[sender.key][1])]
        most = sender.limits.connections
        if most >= 0 and sum(one.sender.key == sender.key for one in self._open.values()) > most:
            return [self._close(cid, sender, f"more than {most} connections")]
        return []

    def disconnected(self, cid: int, sent: Sent) -> None:
        """A connection ended after it had sent so much in all."""
        if (one := self._open.pop(cid, None)) is not None:
            self._count(one, sent)

    def measured(self, counts: Mapping[int, Sent], asked: float, now: float) -> list[CloseConnection]:
        """What each connection has sent in all. asked: when; connections that are not there and older are gone."""
        for cid in [cid for cid, one in self._open.items() if cid not in counts and one.since < asked]:
            del self._open[cid]
        for cid, one in self._open.items():
            self._count(one, counts.get(cid, one.seen))
        messages, size = self._messages, self._bytes
        self._messages, self._bytes = Counter(), Counter()
        over: dict[tuple[str, str], str] = {}
        limits = {one.sender.key: one.sender.limits for one in self._open.values()}
        for key in messages.keys() | limits.keys():
            reason = self._excess(key, limits.get(key), messages[key], size[key], now)
            if reason:
                over[key] = f"{key[1]} sent {reason}"
        over |= self._tenants_over(messages, size, now)
        for key in over:
            self._suspend(key, now)
        return [
            self._close(cid, one.sender, over[one.sender.key], self._suspended[one.sender.key][1])
            for cid, one in list(self._open.items())
            if one.sender.key in over
        ]

    def _count(self, one: _Open, sent: Sent) -> None:
        self._messages[one.sender.key] += max(0, sent.messages - one.seen.messages)
        self._bytes[one.sender.key] += max(0, sent.bytes - one.seen.bytes)
        one.seen = sent

    def _suspend(self, key: tuple[str, str], now: float) -> None:
        """Close what a user opens for a while; longer if that did not help the last time."""
        until, before = self._suspended.get(key, (0.0, 0.0))
        again = now - until < _FORGOTTEN_AFTER_S
        seconds = min(_LONGEST_SUSPENSION_S, 2 * before) if again and before else _SUSPENDED_S
        self._suspended[key] = now + seconds, seconds

    def _tenants_over(
        self, messages: Counter[tuple[str, str]], size: Counter[tuple[str, str]], now: float
    ) -> dict[tuple[str, str], str]:
        """Of each tenant that sends too much: the user that sent most."""
        over = {}
        for account, tenant in self._tenants.items():
            users = [key for key in messages.keys() | size.keys() if key[0] == account]
            sums = sum(messages[key] for key in users), sum(size[key] for key in users)
            if reason := self._excess((account, ""), tenant.limits, *sums, now):
                most = size if reason.endswith("bytes/s") else messages
                busiest = max(users, key=most.__getitem__, default=None)
                if busiest is not None:
                    over[busiest] = f"tenant {tenant.name} sent {reason}, {busiest[1]} most of it"
        return over

    def _excess(self, key: tuple[str, str], limits: AccessLimits | None, messages: int, size: int, now: float) -> str:
        bucket = self._buckets.get(key)
        if limits is not None and (bucket is None or bucket.limits != limits):
            if not _is_limited(limits):
                return ""
            bucket = self._buckets[key] = _Account(limits, now)
        return bucket.excess(messages, size, now) if bucket is not None else ""

    def _close(self, cid: int, sender: Sender, reason: str = "", seconds: float = 0.0) -> CloseConnection:
        if reason and (sender.key in self.closed or len(self.closed) < _USERS_COUNTED):
            self.closed[sender.key] += 1
        self._open.pop(cid, None)
        return CloseConnection(cid, sender, reason, seconds)


def _is_limited(limits: AccessLimits) -> bool:
    return limits.messages_per_second >= 0 or limits.bytes_per_second >= 0
