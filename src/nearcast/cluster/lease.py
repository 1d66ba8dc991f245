"""One driver at a time: a lease in the cloud's store, so that a second driver is refused and a dead one replaced.

Two drivers would answer every channel twice. The lease is one entry of a key-value bucket, changed by compare-and-set.
No clocks are compared: a driver that wants the lease watches whether its holder renews it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, StorageType
from nats.js.errors import APIError, KeyNotFoundError

from nearcast.cluster.fetch import link_to
from nearcast.domain.errors import InputError, NearcastError
from nearcast.wire import subjects

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from nearcast.domain.site import SiteSpec

__all__ = ["DriverLease"]

_log = logging.getLogger(__name__)
_BUCKET, _KEY = "nearcast-driver", "driver"
_WRONG_LAST_SEQUENCE = 10071


class DriverLease:
    """Looks at the lease when made; `take` it before work, `check` now and then, `release` it at the end.

    So a driver can be made to look before Spark starts, and has waited long enough when Spark has started.
    """

    def __init__(self, cloud: SiteSpec, *, renew_every: float = 2.0, dead_after: float = 7.0) -> None:
        self._store, self._renew_every, self._dead_after = cloud.name, renew_every, dead_after
        self._link = link_to([cloud.url])
        self._js = self._link.connection.jetstream(domain=cloud.name, timeout=10)
        self._bucket: KeyValue = self._link.call(self._open())
        self._me = f"{socket.gethostname()}, process {os.getpid()}"
        self._revision, self._holder = self._link.call(self._look())
        self._looked = time.monotonic()
        self._stop = threading.Event()
        self._lost = ""
        self._renewing = threading.Thread(target=self._renew, name="lease", daemon=True)

    def take(self) -> None:
        """Take the lease. InputError when another driver renews it; one that does not is waited for, then replaced."""
        while self._holder and time.monotonic() - self._looked < self._dead_after:
            time.sleep(self._renew_every / 4)
            revision, holder = self._link.call(self._look())
            if holder and revision != self._revision:
                raise _taken(holder)
            self._revision, self._holder = revision, holder
        if self._holder:
            _log.warning("the driver before this one (%s) ended without a word", self._holder)
        self._revision = self._link.call(self._put(self._me))
        self._renewing.start()

    def check(self) -> None:
        """InputError when another driver has taken over, for example while this machine slept."""
        if self._lost:
            raise InputError(self._lost)

    def release(self) -> None:
        """Let the next driver start at once."""
        self._stop.set()
        if self._renewing.ident is None or self._lost:
            return
        self._renewing.join()
        with contextlib.suppress(NearcastError):  # then the next one waits a little
            self._link.call(self._put(""))

    def _renew(self) -> None:
        while not self._stop.wait(self._renew_every):
            try:
                self._revision = self._link.call(self._put(self._me))
            except InputError as error:
                self._lost = str(error)
                return
            except NearcastError as error:
                _log.warning("%s", error)

    async def _open(self) -> KeyValue:
        config = KeyValueConfig(bucket=_BUCKET, history=1, storage=StorageType.FILE, direct=True)
        try:
            return await self._js.create_key_value(config)
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"the store of {self._store} cannot keep the driver's lease: {error}") from error

    async def _look(self) -> tuple[int, str]:
        """Revision and holder; nobody holds what was given back or never taken."""
        try:
            entry = await self._bucket.get(_KEY)
        except KeyNotFoundError:
            return 0, ""
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"the driver's lease cannot be read: {error or 'timed out'}") from error
        return entry.revision or 0, (entry.value or b"").decode()

    async def _put(self, holder: str) -> int:
        """Write the lease if nobody else did; below the API's prefix, because $KV does not cross into a domain."""
        subject = f"{subjects.store_api(self._store)}.$KV.{_BUCKET}.{_KEY}"
        try:
            headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision)}
            return (await self._js.publish(subject, holder.encode(), headers=headers)).seq
        except APIError as error:
            if error.err_code != _WRONG_LAST_SEQUENCE:
                raise NearcastError(f"the driver's lease cannot be written: {error}") from error
            raise _taken((await self._look())[1]) from None
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"the driver's lease cannot be written: {error or 'timed out'}") from error


def _taken(holder: str) -> InputError:
    return InputError(f"the data cluster is run by another driver already ({holder}); stop that one first")
