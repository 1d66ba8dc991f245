"""Who leads: a lease in the coordinators' state. Decisions apart from the shell that reads and writes.

A leader renews three times per period and stops acting one period after its last renewal began. Another takes over
when it has seen the same revision for a whole period by its own clock, with the next term; no clocks are compared.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nearcast.coordinator.state import ConflictError, State, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Lease", "LeaseMachine", "keep_lease"]

_log = logging.getLogger(__name__)
_KEY = "lease"


class Lease(msgspec.Struct, frozen=True):
    """The leader, and its term: the number of leaders so far."""

    holder: str
    term: int
    count: int = 0  # renewals: two writes are never the same


@dataclass(frozen=True)
class Write:
    """Write this lease, if the last one seen is still there."""

    lease: Lease


class LeaseMachine:
    """Decides when to write. Times are of one steady clock."""

    def __init__(self, name: str, period: float) -> None:
        self.name, self.period = name, period
        self.lease: Lease | None = None
        self._first_seen = self._valid_until = self._renew_at = float("-inf")
        self._seen_any = False

    def seen(self, lease: Lease | None, now: float) -> None:
        """The lease as it stands."""
        if not self._seen_any or lease != self.lease:
            self._first_seen, self._seen_any = now, True
        if lease is None or lease.holder != self.name:
            self._valid_until = float("-inf")
        self.lease = lease

    def wish(self, now: float) -> Write | None:
        """What to write now, if anything."""
        if not self._seen_any:
            return None
        if self.lease is None:
            return Write(Lease(self.name, 1))
        if self.lease.holder == self.name:
            return (
                Write(msgspec.structs.replace(self.lease, count=self.lease.count + 1))
                if now >= self._renew_at
                else None
            )
        if now - self._first_seen >= self.period:
            return Write(Lease(self.name, self.lease.term + 1))
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


async def keep_lease(machine: LeaseMachine, state: State, changed: Callable[[bool], None]) -> None:
    """Look at the lease and write it as the machine wishes, until cancelled; `changed` hears of gain and loss."""
    clock = asyncio.get_running_loop().time
    led = False
    while True:
        try:
            if not machine.leads(clock()):
                await _look(machine, state, clock)
            wish = machine.wish(clock())
            if wish is not None:
                began = clock()
                async with asyncio.timeout(machine.period / 2):
                    await state.write(_KEY, wish.lease)
                machine.written(wish.lease, began)
        except ConflictError:
            await _look(machine, state, clock)
        except (StateError, TimeoutError) as error:
            _log.warning("the lease cannot be kept: %s", error or "timed out")
        leads = machine.leads(clock())
        if leads != led:
            led = leads
            changed(led)
        await asyncio.sleep(machine.period / 8)


async def _look(machine: LeaseMachine, state: State, clock: Callable[[], float]) -> None:
    try:
        async with asyncio.timeout(machine.period / 2):
            found = await state.read(_KEY)
    except (StateError, TimeoutError) as error:
        _log.warning("the lease cannot be read: %s", error or "timed out")
        return
    machine.seen(msgspec.json.decode(found, type=Lease) if found is not None else None, clock())
