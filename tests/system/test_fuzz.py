"""Anything on every subject that any process listens on: no process ends, no connection drops, reports go on.

The subjects are those that the broker says are subscribed to, so that a new one is fuzzed by itself.
NEARCAST_FUZZ=20000 sends so many messages in all instead of a few per subject.
"""

from __future__ import annotations

import contextlib
import os
import random

import psutil
from tests.system.control import coordinator
from tests.system.fuzzing import concrete, payload, structs, subscribed_subjects

from nearcast.domain.topic import TopicSpec
from nearcast.nats.connection import open_connection
from nearcast.testing import RunningSites, until

PER_SUBJECT = 40
IN_ALL = int(os.environ.get("NEARCAST_FUZZ", "0"))


async def listened_on(c: RunningSites) -> list[str]:
    """What is subscribed to at a broker; but the store's own subjects, and those of one request."""
    found = await subscribed_subjects(c)
    return sorted(subject for subject in found if not subject.startswith(("_", "$JS", "$SYS", "$KV", "$MQTT", "$NRG")))


async def test_nothing_that_arrives_ends_a_process_or_a_connection(city) -> None:
    rng, kinds = random.Random(13), structs()
    topics = TopicSpec("gps", ("tokyo",)), TopicSpec("mov.*", ("cloud",), ("cloud",), 1)
    async with (
        city(*topics, names=("tokyo", "cloud"), report_seconds=0.5) as c,
        coordinator(c, lease=4.0, site_lost_after=30.0) as control,
    ):
        subjects = await listened_on(c)
        assert len(subjects) > 40
        agents = [site._connection for site in c.sites.values() if site._connection is not None]
        lost: list[str] = []
        for connection in (*agents, control.connection):

            async def disconnected(name: str = str(connection.options["name"])) -> None:
                lost.append(name)

            connection._disconnected_cb = disconnected
        pids = {worker.pid for site in c.sites.values() for worker in site.workers.values()}
        memory = psutil.Process().memory_info().rss
        evil = await open_connection([c.url("cloud")], name="fuzzer")
        inbox = evil.new_inbox()
        try:
            for n in range(IN_ALL or PER_SUBJECT * len(subjects)):
                subject = concrete(subjects[n % len(subjects)], rng)
                evil.send(subject, b"", payload(kinds, rng), inbox if rng.random() < 0.5 else "")
                if n % 200 == 0:
                    await evil.flush()
            await evil.flush()
        finally:
            with contextlib.suppress(Exception):
                await evil.close()
        for site in c.sites:
            seen = control.leader.monitor.reports.get(site)
            await until(lambda site=site, seen=seen: control.leader.monitor.reports.get(site) not in (None, seen), 60)  # type: ignore[misc]
        assert lost == []
        assert pids <= {worker.pid for site in c.sites.values() for worker in site.workers.values()}
        assert psutil.Process().memory_info().rss - memory < 200 << 20
        assert (await control.ask("coordinator", "status"))["leader"]
