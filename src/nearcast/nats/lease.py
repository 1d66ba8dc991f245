"""Who leads: a lease under one key of a bucket. Decisions apart from the shell that reads and writes.

A holder renews three times per period and stops acting one period after its last renewal began. Another takes over
when it has seen the same revision for a whole period by its own clock, with the next term; no clocks are compared.
A lease that was given back has no holder and is taken at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from nearcast.domain.ranges import Count, Term, Text
from nearcast.nats.boundary import MalformedError, decode, drop
from nearcast.nats.kv import BucketError, BucketNotFoundError, ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.kv import Bucket
    from nearcast.nats.streams import StoredEntry

__all__ = ["LEASE_KEY", "UNREADABLE", "Lease", "LeaseKeeper", "LeaseMachine"]

_log = logging.getLogger(__name__)
LEASE_KEY = "lease"
UNREADABLE = "?"
"""The holder of a lease that cannot be read."""


class Lease(msgspec.Struct, frozen=True):
    """The holder, and its term: the number of holders so far."""

    holder: Text
    term: Term
    count: Count = 0  # renewals: two writes are never the same


class LeaseMachine:
    """Decides when to write. Times are of one steady clock."""

    def __init__(self, name: str, period: float) -> None:
        self.name, self.period = name, period
        self.lease: Lease | None = None
        self._first_seen = self._valid_until = self._renew_at = float("-inf")
        self._seen_any = False
        self._highest = 0

    def exceed(self, term: int) -> None:
        """Somebody has seen this term, even if the bucket knows nothing of it any more: the own one must be higher."""
        self._highest = max(self._highest, term)

    def seen(self, lease: Lease | None, now: float) -> None:
        """The lease as it stands."""
        if not self._seen_any or lease != self.lease:
            self._first_seen, self._seen_any = now, True
        if lease is None or lease.holder != self.name:
            self._valid_until = float("-inf")
        self.lease = lease

    def wish(self, now: float) -> Lease | None:
        """The lease to write now, if the last one seen is still there; None for none."""
        if not self._seen_any:
            return None
        if self.lease is None:
            return Lease(self.name, self._highest + 1)
        if self.lease.holder == self.name:
            if self.lease.term <= self._highest:
                return Lease(self.name, self._highest + 1)
            renewed = msgspec.structs.replace(self.lease, count=self.lease.count + 1)
            return renewed if now >= self._renew_at else None
        if not self.lease.holder or now - self._first_seen >= self.period:
            return Lease(self.name, max(self.lease.term, self._highest) + 1)
        return None

    def written(self, lease: Lease, began: float) -> None:
        """The write that began then has succeeded."""
        self.lease, self._first_seen = lease, began
        self._valid_until, self._renew_at = began + self.period, began + self.period / 3

    def leads(self, now: float) -> bool:
        """Whether this one may act: until a period after its last renewal began, whatever it has heard since."""
        return now < self._valid_until

    @property
    def term(self) -> int:
        """The term of the last lease seen."""
        return self.lease.term if self.lease else 0


class LeaseKeeper:
    """Keeps a machine's lease in a bucket."""

    def __init__(self, bucket: Bucket, machine: LeaseMachine, key: str = LEASE_KEY) -> None:
        self._bucket, self._key, self.machine = bucket, key, machine
        self._revision = 0

    async def keep(self, changed: Callable[[bool], None]) -> None:
        """Look and write as the machine says, until cancelled; `changed` hears of gain and loss."""
        led = False
        while True:
            try:
                await self.step()
            except BucketNotFoundError:  # the store has lost it
                if led:
                    changed(False)
                raise
            except (BucketError, TimeoutError) as error:
                _log.warning("the lease cannot be kept: %s", error or "timed out")
            except Exception:
                _log.exception("the lease cannot be kept")
            leads = self.machine.leads(asyncio.get_running_loop().time())
            if leads != led:
                led = leads
                changed(led)
            await asyncio.sleep(self.machine.period / 8)

    async def step(self) -> None:
        """Look at the lease unless it is held, and write it if the machine wants to."""
        clock, machine = asyncio.get_running_loop().time, self.machine
        if not machine.leads(clock()):
            await self.look()
        wish = machine.wish(clock())
        if wish is None:
            return
        began = clock()
        try:
            await self._write(wish)
        except ConflictError:
            await self.look()
        else:
            machine.written(wish, began)

    async def release(self) -> None:
        """Give the lease back, if it is held: the next one need not wait."""
        lease = self.machine.lease
        if lease is not None and lease.holder == self.machine.name:
            await self._write(Lease("", lease.term))
            self.machine.seen(Lease("", lease.term), asyncio.get_running_loop().time())

    async def _write(self, lease: Lease) -> None:
        async with asyncio.timeout(self.machine.period / 2):
            self._revision = await self._bucket.put(self._key, msgspec.json.encode(lease), expected=self._revision)

    async def look(self) -> None:
        """Read the lease as it stands."""
        try:
            async with asyncio.timeout(self.machine.period / 2):
                entry = await self._bucket.get(self._key)
        except TimeoutError:  # a bucket that is not there answers no reads
            await self._bucket.require()
            raise
        self._revision = entry.sequence if entry is not None else 0
        self.machine.seen(self._read(entry), asyncio.get_running_loop().time())

    def _read(self, entry: StoredEntry | None) -> Lease | None:
        """The lease. One that is unreadable is somebody's: it is taken over when a period has passed."""
        if entry is None:
            return None
        try:
            return decode(entry.payload, Lease)
        except MalformedError as error:
            drop("lease", f"{self._bucket.name}/{self._key}", error)
            return Lease(UNREADABLE, self.machine.term, entry.sequence)
