"""One driver at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cluster.running import two_sites

from nearcast.cluster.lease import DriverLease
from nearcast.domain.errors import InputError
from nearcast.domain.site import SiteSpec
from nearcast.site.site import run_sites


async def test_a_second_driver_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        await asyncio.to_thread(take_turns, deployment.cloud())


def take_turns(cloud: SiteSpec) -> None:
    def lease() -> DriverLease:
        return DriverLease(cloud, renew_every=0.2, dead_after=1.5)

    first = lease()
    first.take()
    with pytest.raises(InputError, match=r"run by another driver already \(.*process \d+\); stop that one first"):
        lease().take()
    first.check()  # it was not disturbed
    first.release()
    second = lease()
    second.take()  # at once: it was given back
    second._stop.set()  # as if it were killed: nothing is renewed, nothing given back
    second._renewing.join()
    third = lease()
    third.take()
    third.check()
    # The second one wakes up again and learns that it is not the driver any more.
    second._stop.clear()
    second._renew()
    with pytest.raises(InputError, match="run by another driver"):
        second.check()
    third.check()
    third.release()
