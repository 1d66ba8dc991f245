"""A coordinator: it waits for the lease, and leads while it holds it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

from nearcast.coordinator.goals import GOALS
from nearcast.coordinator.leader import Leader
from nearcast.coordinator.registry import Registry
from nearcast.coordinator.state import CoordinatorState
from nearcast.coordinator.state_copy import StateCopy, open_state
from nearcast.coordinator.term import DeposedError, Term
from nearcast.nats.audit import AuditLog
from nearcast.nats.kv import Bucket, BucketError, BucketNotFoundError, ConflictError
from nearcast.nats.lease import LeaseKeeper, LeaseMachine
from nearcast.nats.tasks import cancel_and_wait, gather_or_cancel

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.goals import Goal
    from nearcast.nats.connection import Connection

__all__ = ["Coordinator"]

_log = logging.getLogger(__name__)


class Coordinator:
    """One of several; at most one of them leads. `site` is the one whose store has their state."""

    def __init__(
        self, connection: Connection, site: str, settings: CoordinatorSettings, goals: tuple[Goal, ...] = GOALS
    ) -> None:
        self.name = f"coordinator-{secrets.token_hex(4)}"
        self._connection, self._site, self.settings, self._goals = connection, site, settings, goals
        self.lease = LeaseMachine(self.name, settings.lease)
        self.term = Term(self.lease)
        self.leading = asyncio.Event()  # set while this coordinator answers and plans
        self.leader: Leader | None = None  # of the present or last term
        self.copy: StateCopy | None = None  # of the present or last term
        self._elected = asyncio.Event()

    async def run(self) -> None:
        """Take part in the election until cancelled; then give the lease back, so that another need not wait."""
        opened = False
        while True:
            try:
                bucket, term = await open_state(self._connection, self._site)
            except BucketError as error:
                if not opened:  # nobody has seen it work
                    raise
                _log.warning("%s: %s; trying again", self.name, error)
                await asyncio.sleep(self.settings.lease)
                continue
            opened = True
            self.lease.exceed(max(term, self.lease.term))
            keeper = LeaseKeeper(bucket, self.lease)
            try:
                # No TaskGroup: it cancels a task once, and nats-py may take that for its own time-out.
                await gather_or_cancel(keeper.keep(self._lease_changed), self._lead_whenever_elected(bucket))
            except BucketNotFoundError as error:
                _log.warning("%s: %s", self.name, error)
            finally:
                with contextlib.suppress(BucketError, ConflictError, TimeoutError):
                    await keeper.release()

    def _lease_changed(self, leads: bool) -> None:
        _log.info("%s %s (term %d)", self.name, "leads" if leads else "does not lead", self.lease.term)
        if leads:
            self._elected.set()
        else:
            self._elected.clear()

    async def _lead_whenever_elected(self, bucket: Bucket) -> None:
        while True:
            await self._elected.wait()
            leading = asyncio.create_task(self._lead(bucket), name="lead")
            deposed = asyncio.create_task(self._wait_until_deposed(), name="wait until deposed")
            try:
                await asyncio.wait((leading, deposed), return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_and_wait(leading, deposed)
            error = leading.exception() if leading.done() and not leading.cancelled() else None
            if isinstance(error, (DeposedError, BucketError, ConflictError)):
                _log.warning("%s stops leading: %s", self.name, error)
                await asyncio.sleep(self.settings.lease / 8)
            elif error is not None:
                _log.error("%s stops leading over an error", self.name, exc_info=error)
                await asyncio.sleep(self.settings.lease)

    async def _lead(self, bucket: Bucket) -> None:
        self.copy = StateCopy(self._connection, bucket)
        registry = Registry(CoordinatorState(bucket, self.copy.note))
        await registry.load()
        audit = AuditLog(self._connection, self._site)
        self.leader = leader = Leader(
            self.name, self._connection, registry, self.term, self.settings, self._goals, audit
        )
        await gather_or_cancel(
            leader.run(self.leading),
            self.copy.run(lambda: leader.copy_candidates(self._site), self.term.number),
        )

    async def _wait_until_deposed(self) -> None:
        while self._elected.is_set():  # noqa: ASYNC110 - a second event would have to be kept in step
            await asyncio.sleep(self.settings.lease / 16)
