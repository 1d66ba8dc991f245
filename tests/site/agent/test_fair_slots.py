"""Expensive requests run in turns of their callers."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.errors import NearcastError
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.agent.fair_slots import FairSlots


async def test_who_sends_many_requests_delays_nobody_by_more_than_one_of_them() -> None:
    slots, order, gate = FairSlots(1), list[str](), asyncio.Event()

    async def ask(caller: str) -> None:
        async with slots.slot(caller):
            await gate.wait()
            order.append(caller)

    tasks = [asyncio.create_task(ask("evil")) for _ in range(50)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(ask(name)) for name in ("car7", "car8")]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    assert order[:4] == ["evil", "evil", "car7", "car8"]
    assert order.count("evil") == 50


async def test_a_caller_has_a_limited_number_of_requests_that_wait() -> None:
    slots = FairSlots(1)
    async with slots.slot("evil"):
        waiting = [asyncio.create_task(slots._acquire("evil")) for _ in range(100)]
        await asyncio.sleep(0)
        with pytest.raises(NearcastError, match="busy: 100 requests of evil wait already"):
            async with slots.slot("evil"):
                pass
        await cancel_and_wait(*waiting)


async def test_slots_of_requests_that_were_cancelled_are_given_to_others() -> None:
    slots = FairSlots(2)
    for _ in range(3):
        async with slots.slot("a"), slots.slot("b"):
            gone = [asyncio.create_task(slots._acquire(name)) for name in ("c", "d")]
            await asyncio.sleep(0)
            gone[0].cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        slots._release()  # of d
        await asyncio.gather(*gone, return_exceptions=True)
    async with slots.slot("a"), slots.slot("b"):
        pass
    assert slots._free == 2
