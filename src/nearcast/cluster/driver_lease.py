"""One driver at a time: a lease in the cloud's store. A second driver is refused, a dead one is replaced.

Two drivers would answer every channel twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from nearcast.cluster.nats_source.blocking_connection import connection_to
from nearcast.errors import InputError, NearcastError
from nearcast.nats.kv import Bucket, BucketError, BucketNotFoundError
from nearcast.nats.lease import UNREADABLE, LeaseKeeper, LeaseMachine
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from nearcast.domain.site import SiteSpec

__all__ = ["DriverLease", "DriverReplacedError"]

_log = logging.getLogger(__name__)
_BUCKET, _KEY = "nearcast-driver", "driver"
_LOOK_SECONDS = 0.05


class DriverReplacedError(InputError):
    """Another driver runs the data cluster."""


class DriverLease:
    """Reads the lease when made; `take` it before work, `check` it regularly, `release` it at the end.

    Made before Spark starts, it has waited for a dead driver's lease to expire by the time Spark runs.
    A driver that cannot reach the store continues; it stops when it sees that another one holds the lease.
    """

    def __init__(self, cloud: SiteSpec, *, period: float = 7.0) -> None:
        self._connection = connection_to([cloud.url])
        self._name = f"{socket.gethostname()}, process {os.getpid()}, {os.urandom(2).hex()}"
        self._bucket = Bucket(self._connection.connection, cloud.name, _BUCKET, timeout=10)
        self._connection.call(self._bucket.create())
        self._keeper = LeaseKeeper(self._bucket, LeaseMachine(self._name, period), _KEY)
        self._connection.call(self._keeper.look())
        self._renewal: asyncio.Task[None] | None = None

    def wait(self, stop: threading.Event) -> bool:
        """On standby: wait until no other driver renews the lease; False when told to stop."""
        machine = self._keeper.machine
        while not stop.wait(machine.period / 16):
            try:
                self._connection.call(self._keeper.look())
                if machine.wish(time.monotonic()) is not None:
                    return True
            except (NearcastError, TimeoutError) as error:  # the store is away; so is the other driver's lease
                _log.debug("the driver's lease cannot be read: %s", error)
            except Exception:
                _log.exception("the driver's lease cannot be read")
        return False

    def take(self) -> None:
        """Take the lease, if nobody renews it; DriverReplacedError when another driver does."""
        machine = self._keeper.machine
        before = machine.lease
        while (lease := machine.lease) is None or lease.holder != self._name:
            if lease is not None and lease.holder and lease != before:
                raise self._held_by_another()
            self._connection.call(self._keeper.step())
            time.sleep(machine.period / 16)
        self._renewal = self._connection.call(self._start_renewal())

    @property
    def term(self) -> int:
        """The number of drivers that have held the lease so far: files and commits of an older one are refused."""
        return self._keeper.machine.term

    def require(self) -> None:
        """Wait while the lease is not renewed: the store may be away for a moment. NearcastError after two periods, or
        when another driver has taken over."""
        machine = self._keeper.machine
        deadline = time.monotonic() + 2 * machine.period
        while not machine.leads(time.monotonic()):
            self.check()
            if time.monotonic() > deadline:
                raise NearcastError("the driver's lease is not renewed; another driver may have taken over")
            time.sleep(_LOOK_SECONDS)

    def check(self) -> None:
        """DriverReplacedError when another driver has taken over, for example while this machine slept."""
        lease = self._keeper.machine.lease
        if lease is not None and lease.holder not in (self._name, UNREADABLE):  # which it takes again
            raise self._held_by_another()

    def release(self) -> None:
        """Give the lease back: the next driver starts at once."""
        if self._renewal is not None:
            with contextlib.suppress(NearcastError, TimeoutError):  # then the next one waits for it to expire
                self._connection.call(self._release())

    async def _start_renewal(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._keep(), name="driver lease")

    async def _keep(self) -> None:
        """Renew the lease, also in a bucket that the store has lost and that is made again."""
        while True:
            try:
                await self._keeper.keep(lambda leads: None)
            except BucketNotFoundError as error:
                _log.warning("%s; it is made again", error)
            await asyncio.sleep(self._keeper.machine.period / 8)
            try:
                await self._bucket.create()
            except BucketError as error:  # keeping it says so, too
                _log.debug("the lease has no bucket: %s", error)
            except Exception:
                _log.exception("the lease has no bucket")

    async def _release(self) -> None:
        await cancel_and_wait(self._renewal)
        await self._keeper.look()  # the renewal that was cancelled may have been written
        await self._keeper.release()

    def _held_by_another(self) -> DriverReplacedError:
        lease = self._keeper.machine.lease
        holder = lease.holder if lease is not None else ""
        return DriverReplacedError(f"the data cluster is run by another driver already ({holder}); stop that one first")
