"""History comes from the nearest live store: three sites at different distances on an emulated wide area."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from tests.suspend import suspend

import nearcast
from nearcast.client.store_finder import StoreFinder
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.lab.wan import call_at, from_rtts, missing_right, sites_at, wide_area
from nearcast.testing import until

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]

ROUND_TRIPS = {("here", "near"): 20.0, ("here", "far"): 200.0, ("near", "far"): 200.0}


async def stores_asked(url: str, topic: str, number: int) -> list[str]:
    """Which stores answered so many queries, once both are known; every answer is complete."""
    asked = []
    async with nearcast.connect(url, timeout=20) as client:
        finder = StoreFinder(lambda: client.connection, random.Random(1))

        async def both_are_known() -> bool:
            return set(await finder.find(topic)) == {"near", "far"}

        await until(both_are_known)
        for n in range(10):
            await client.publish(topic, {"n": n}, timeout=30)
        for _ in range(number):
            query = client.history(topic, last=10)
            assert [message.data["n"] async for message in query] == list(range(10))
            asked.append(query.store)
    return asked


async def test_the_nearest_live_store_answers(tmp_path: Path) -> None:
    async with wide_area(from_rtts(ROUND_TRIPS)) as area:
        specs = []
        for name in ("here", "near", "far"):
            (tmp_path / name).mkdir()
            specs.append(SiteSpec(name, host=area.address(name), store=StoreSpec(tmp_path / name)))
        topic = TopicSpec("log", replicas=("near", "far"), quorum=2)
        async with sites_at(area, Deployment(tuple(specs), (topic,), insecure=True), tmp_path / "run") as sites:
            url = sites["here"].spec.url
            assert await call_at(area, "here", lambda: stores_asked(url, "log", 5)) == ["near"] * 5
            store = int((tmp_path / "run" / "near" / "store.pid").read_text())

            async def after_near_fell_silent() -> list[str]:
                async with nearcast.connect(url, timeout=20) as client:
                    suspend(store)  # it neither answers nor closes its connections
                    query = client.history("log", last=10)
                    assert [message.data["n"] async for message in query] == list(range(10))
                    return [query.store]

            try:
                assert await call_at(area, "here", after_near_fell_silent) == ["far"]
            finally:
                os.kill(store, signal.SIGCONT)
