"""Ending tasks that take a cancellation for somebody else's."""

from __future__ import annotations

import asyncio

from nearcast.wire.tasks import end


async def test_a_task_that_swallows_a_cancellation_ends_all_the_same() -> None:
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 1:
                    raise

    async def failing() -> None:
        raise ValueError("seen by nobody")

    tasks = [asyncio.create_task(stubborn()), asyncio.create_task(failing()), None, asyncio.current_task()]
    await asyncio.sleep(0)
    await end(*tasks)
    assert swallowed == 2
    assert tasks[0] is not None
    assert tasks[0].cancelled()
