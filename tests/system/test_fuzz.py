"""Anything on every subject that any process listens on: no process ends, no connection drops, reports go on.

The subjects are those that the broker says are subscribed to, so that a new one is fuzzed by itself.
NEARCAST_FUZZ=20000 sends so many messages in all instead of a few per subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

from tests.system.control import Control, coordinator
from tests.system.fuzzing import (
    MemoryGrowth,
    all_caught_up,
    connections,
    headers,
    odd_concrete,
    payload,
    processes,
    structs,
    subscribed_subjects,
)

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.nats.connection import open_connection
from nearcast.testing import RunningSites, until

PER_SUBJECT = 40
IN_ALL = int(os.environ.get("NEARCAST_FUZZ", "0"))


async def listened_on(c: RunningSites) -> list[str]:
    """What is subscribed to at a broker; but the store's own subjects, and those of one request."""
    found = await subscribed_subjects(c.sites)
    return sorted(subject for subject in found if not subject.startswith(("_", "$JS", "$SYS", "$KV", "$MQTT", "$NRG")))


async def test_nothing_that_arrives_ends_a_process_or_a_connection(city) -> None:
    rng, kinds = random.Random(13), structs()
    topics = TopicSpec("gps", ("tokyo",)), TopicSpec("mov.*", ("cloud",), ("cloud",), 1)
    async with (
        city(*topics, names=("tokyo", "cloud"), report_seconds=0.5) as c,
        coordinator(c, lease=4.0, site_lost_after=30.0) as control,
        nearcast.connect(name="car", coordinator=c.url("cloud"), report_seconds=0.5) as car,
    ):
        subjects = await listened_on(c)
        assert len(subjects) > 40
        assert "ctl.client.car" in subjects
        before, running = await connections(c.sites), processes(c)
        memory = MemoryGrowth(running)
        evil = await open_connection([c.url("cloud")], name="fuzzer")
        inbox = evil.new_inbox()
        count = IN_ALL or PER_SUBJECT * len(subjects)
        try:
            for n in range(count):
                subject = odd_concrete(subjects[n % len(subjects)], rng)
                evil.send(subject, headers(rng), payload(kinds, rng), inbox if rng.random() < 0.5 else "")
                if n % 200 == 0:
                    await evil.flush(timeout=60)
                    await all_caught_up(c)
                if n in (count // 2, count - 1):
                    await evil.flush(timeout=60)
                    await reported(c, control)
                    memory.note()
            assert evil.is_connected
        finally:
            with contextlib.suppress(Exception):
                await evil.close()
        assert before - await connections(c.sites) == set()
        assert [process.pid for process in processes(c)] == [process.pid for process in running]
        grown = memory.of_last_part()
        assert max(grown.values()) < 64, grown
        assert (await control.ask("coordinator", "status"))["leader"]
        async with car.subscribe("news") as news:  # topics that are configured may have been removed by a request
            await car.publish("news", {"n": 1})
            assert (await asyncio.wait_for(anext(news), 60)).data == {"n": 1}
        print(f"{count} messages on {len(subjects)} patterns of subjects, nothing ended")


async def reported(c: RunningSites, control: Control) -> None:
    """Each site reports once more to the coordinator."""
    for site in c.sites:
        seen = control.leader.monitor.reports.get(site)
        await until(lambda site=site, seen=seen: control.leader.monitor.reports.get(site) not in (None, seen), 60)  # type: ignore[misc]
