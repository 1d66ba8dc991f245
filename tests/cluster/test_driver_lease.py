"""One driver at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cluster.harness import two_sites

from nearcast.cluster.driver_lease import DriverLease
from nearcast.domain.site import SiteSpec
from nearcast.errors import InputError
from nearcast.site.site import run_sites


async def test_a_second_driver_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        await asyncio.to_thread(take_turns, deployment.cloud())


def take_turns(cloud: SiteSpec) -> None:
    def lease() -> DriverLease:
        return DriverLease(cloud, period=1.5)

    first = lease()
    first.take()
    with pytest.raises(InputError, match=r"run by another driver already \(.*process \d+, \w+\); stop that one first"):
        lease().take()
    first.check()  # it was not disturbed
    first.release()
    second = lease()
    second.take()  # at once: it was given back
    assert second._keeping is not None
    second._keeping.cancel()  # as if it were killed: nothing is renewed, nothing given back
    third = lease()
    third.take()
    third.check()
    # The second one wakes up again and learns that it is not the driver any more.
    second._connection.call(second._keeper.look())
    with pytest.raises(InputError, match="run by another driver"):
        second.check()
    third.check()
    third.release()
