"""One driver at a time."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness import two_sites

from nearcast.cluster.driver_lease import DriverLease
from nearcast.domain.site import SiteSpec
from nearcast.errors import InputError, NearcastError
from nearcast.nats.kv import Bucket, BucketError
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.site import run_sites

PERIOD = 3.0
LONG = 20.0


async def test_a_second_driver_is_refused_and_a_dead_one_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        await asyncio.to_thread(take_turns, deployment.cloud())
        await asyncio.to_thread(stand_by, deployment.cloud())
        await asyncio.to_thread(release_during_a_renewal, deployment.cloud(), monkeypatch)
        await asyncio.to_thread(lose_the_store, deployment.cloud(), monkeypatch)


def take_turns(cloud: SiteSpec) -> None:
    def lease() -> DriverLease:
        return DriverLease(cloud, period=PERIOD)

    first = lease()
    first.take()
    with pytest.raises(InputError, match=r"run by another driver already \(.*process \d+, \w+\); stop that one first"):
        lease().take()
    first.check()  # it was not disturbed
    first.release()
    second = DriverLease(cloud, period=LONG)
    start = time.monotonic()
    second.take()
    assert time.monotonic() - start < LONG / 2, "a lease that was given back is taken at once"
    # As if it were killed: nothing is renewed, nothing given back.
    second._connection.call(cancel_and_wait(second._renewal))
    third = lease()
    third.take()
    third.check()
    # The second one runs again and sees that another driver has the lease.
    second._connection.call(second._keeper.look())
    with pytest.raises(InputError, match="run by another driver"):
        second.check()
    second.release()  # it has nothing to give back
    third.check()
    third.release()


def stand_by(cloud: SiteSpec) -> None:
    """A driver on standby takes over when the other one ends, and its term is higher."""
    stop = threading.Event()
    first, waiting = DriverLease(cloud, period=PERIOD), DriverLease(cloud, period=PERIOD)
    first.take()
    first.require()
    took_over: list[bool] = []
    thread = threading.Thread(target=lambda: took_over.append(waiting.wait(stop)))
    thread.start()
    thread.join(2 * PERIOD)
    assert not took_over, "the first one renews its lease"
    first._connection.call(cancel_and_wait(first._renewal))  # as if it were killed
    thread.join(60)
    assert took_over == [True]
    waiting.take()
    assert waiting.term == first.term + 1
    waiting.require()
    with pytest.raises(NearcastError, match="the driver's lease is not renewed"):
        first.require()
    stop.set()
    assert not DriverLease(cloud, period=PERIOD).wait(stop)
    waiting.release()


def release_during_a_renewal(cloud: SiteSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A renewal that is cancelled after it was written does not keep the lease from being given back."""
    driver = DriverLease(cloud, period=PERIOD)
    driver.take()
    written, put = threading.Event(), Bucket.put

    async def slow_put(self: Bucket, *args: Any, **kwargs: Any) -> int:
        revision = await put(self, *args, **kwargs)
        written.set()
        await asyncio.sleep(PERIOD / 3)
        return revision

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "put", slow_put)
        assert written.wait(60)
    driver.release()
    following = DriverLease(cloud, period=LONG)
    start = time.monotonic()
    following.take()
    assert time.monotonic() - start < LONG / 2
    following.release()


def lose_the_store(cloud: SiteSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver goes on while the store does not answer, and renews its lease when the store is back."""
    driver = DriverLease(cloud, period=PERIOD)
    driver.take()

    async def unreachable(*args: object, **kwargs: object) -> None:
        raise BucketError("no answer")

    with monkeypatch.context() as patch:
        for method in ("get", "put"):
            patch.setattr(Bucket, method, unreachable)
        deadline = time.monotonic() + 1.5 * PERIOD
        while time.monotonic() < deadline:
            driver.check()
            time.sleep(0.1)
    deadline = time.monotonic() + 10 * PERIOD
    while not driver._connection.call(leads(driver)):
        assert time.monotonic() < deadline, "not renewed"
        time.sleep(0.05)
    driver.check()
    with pytest.raises(InputError, match="run by another driver"):
        DriverLease(cloud, period=PERIOD).take()
    driver.release()


async def leads(driver: DriverLease) -> bool:
    return driver._keeper.machine.leads(asyncio.get_running_loop().time())
