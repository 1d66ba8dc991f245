"""A coordinator killed at every step of a migration: its successor finishes or rolls back, and no message is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.system.control import coordinator

import nearcast
from nearcast.coordinator.executor.executor import Executor
from nearcast.domain.topic import TopicSpec
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import until


async def test_killed_at_every_step_leaves_one_owner_and_no_lost_message(city, monkeypatch):
    spec = TopicSpec("gps", ("tokyo",))
    original = Executor._do
    left = 0  # steps until the coordinator dies; each instruction has two moments: before it and after it
    died = asyncio.Event()

    async def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            died.set()
            await asyncio.Event().wait()  # never again

    async def dying(self, move, instruction):
        await step()
        event = await original(self, move, instruction)
        await step()
        return event

    async with city(spec, report_seconds=0.2) as c:
        got: list[str] = []
        sent: list[str] = []
        async with (
            nearcast.connect(c.url("cloud"), name="reader") as reader,
            nearcast.connect(c.url("osaka"), name="writer") as writer,
        ):
            await reader.subscribe("gps", callback=lambda message: got.append(message.id.partition(";")[0]))
            await c.interest_settled()

            async def publish() -> None:
                while True:
                    sent.append((await writer.publish("gps", {"n": len(sent)})).id)
                    await asyncio.sleep(0.005)

            task = asyncio.create_task(publish())
            outcomes = set()
            for crash_at in range(1, 11):
                monkeypatch.setattr(Executor, "_do", dying)
                died.clear()
                async with coordinator(c) as first:
                    here = (await first.members("gps"))[0].partition("/")[0]
                    there = "osaka" if here == "tokyo" else "tokyo"
                    left = crash_at
                    asking = asyncio.create_task(first.ask("topic", "move", name="gps", to=[there]))
                    await asyncio.wait((asyncio.create_task(died.wait()), asking), return_when="FIRST_COMPLETED")
                    assert died.is_set()
                    await cancel_and_wait(asking)
                monkeypatch.setattr(Executor, "_do", original)
                left = 0
                async with coordinator(c) as second:
                    await until(lambda control=second: not control.leader.registry.moves)
                    (owner,) = await second.members("gps")
                    outcomes.add(owner.partition("/")[0] == there)
                    await until(
                        lambda owner=owner: (
                            [name for name, site in c.sites.items() if "gps" in site.agent.topic_host.running]
                            == [owner.partition("/")[0]]
                        )
                    )
            await cancel_and_wait(task)
            await until(lambda: len(set(got)) >= len(sent))
            await asyncio.sleep(0.5)
            counts = Counter(got)
            assert [identity for identity in sent if identity not in counts] == []
            assert [identity for identity, count in counts.items() if count > 1] == []
            assert outcomes == {True, False}  # before it was journalled: nothing happened; after that: it was finished
