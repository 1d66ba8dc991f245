"""One driver at a time: a lease in the cloud's store, so that a second driver is refused and a dead one replaced.

Two drivers would answer every channel twice.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import TYPE_CHECKING

from nearcast.cluster.fetch import link_to
from nearcast.errors import InputError, NearcastError
from nearcast.nats.kv import Bucket
from nearcast.nats.lease import LeaseKeeper, LeaseMachine

if TYPE_CHECKING:
    from concurrent.futures import Future

    from nearcast.domain.site import SiteSpec

__all__ = ["DriverLease"]

_BUCKET, _KEY = "nearcast-driver", "driver"


class DriverLease:
    """Looks at the lease when made; `take` it before work, `check` now and then, `release` it at the end.

    So a driver can be made to look before Spark starts, and has waited long enough when Spark has started.
    """

    def __init__(self, cloud: SiteSpec, *, period: float = 7.0) -> None:
        self._link = link_to([cloud.url])
        self._name = f"{socket.gethostname()}, process {os.getpid()}, {os.urandom(2).hex()}"
        bucket = Bucket(self._link.connection, cloud.name, _BUCKET, timeout=10)
        self._link.call(bucket.create())
        self._keeper = LeaseKeeper(bucket, LeaseMachine(self._name, period), _KEY)
        self._link.call(self._keeper.look())
        self._keeping: Future[None] | None = None

    def take(self) -> None:
        """Take the lease. InputError when another driver renews it; one that does not is waited for, then replaced."""
        machine = self._keeper.machine
        before = machine.lease
        while (lease := machine.lease) is None or lease.holder != self._name:
            if lease is not None and lease.holder and lease != before:
                raise self._taken()
            self._link.call(self._keeper.step())
            time.sleep(machine.period / 16)
        self._keeping = self._link.start(self._keeper.keep(lambda leads: None))

    def check(self) -> None:
        """InputError when another driver has taken over, for example while this machine slept."""
        lease = self._keeper.machine.lease
        if lease is not None and lease.holder != self._name:
            raise self._taken()

    def release(self) -> None:
        """Let the next driver start at once."""
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(NearcastError, TimeoutError):  # then the next one waits a little
                self._link.call(self._keeper.release())

    def _taken(self) -> InputError:
        lease = self._keeper.machine.lease
        holder = lease.holder if lease is not None else ""
        return InputError(f"the data cluster is run by another driver already ({holder}); stop that one first")
