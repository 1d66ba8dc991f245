"""Ending tasks that take a cancellation for somebody else's."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.nats.tasks import (
    KeyedLocks,
    TaskSet,
    cancel_and_wait,
    gather_or_cancel,
    keep_cancellation,
    repeat,
    retry,
)


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
    await cancel_and_wait(*tasks)
    assert swallowed == 2
    assert tasks[0] is not None
    assert tasks[0].cancelled()


async def test_when_one_fails_the_others_are_ended_before_the_failure_is_seen() -> None:
    ended = []

    async def forever(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        await gather_or_cancel(forever("a"), failing(), forever("b"))
    assert sorted(ended) == ["a", "b"]

    async def number(n: int) -> int:
        return n

    assert await gather_or_cancel(*(number(n) for n in range(3))) == [0, 1, 2]
    assert await gather_or_cancel() == []


async def test_who_is_cancelled_while_it_ends_tasks_ends_them_first() -> None:
    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            raise

    inner = asyncio.create_task(slow_to_end())
    outer = asyncio.create_task(cancel_and_wait(inner))
    await asyncio.sleep(0.01)
    outer.cancel()
    await asyncio.wait([outer])
    assert outer.cancelled()
    assert inner.done()


async def test_cancelled_once_all_are_ended_even_one_that_misses_it() -> None:
    missed = 0

    async def stubborn() -> None:
        nonlocal missed
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            missed += 1
        await asyncio.sleep(60)

    outer = asyncio.create_task(gather_or_cancel(stubborn(), stubborn()))
    await asyncio.sleep(0.01)
    outer.cancel()
    await asyncio.wait([outer], timeout=30)
    assert outer.cancelled()
    assert missed == 2


async def test_a_task_set_forgets_what_is_done_and_logs_what_failed(caplog: pytest.LogCaptureFixture) -> None:
    tasks, forever = TaskSet(), asyncio.Event()

    async def number(n: int) -> int:
        return n

    async def failing() -> None:
        raise ValueError("on purpose")

    assert await tasks.spawn(number(3)) == 3
    tasks.spawn(failing(), name="the one that fails")
    waiting = tasks.spawn(forever.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "task the one that fails failed" in caplog.text
    await tasks.cancel()
    assert waiting.cancelled()
    assert not tasks._tasks


async def test_retry_returns_the_first_result_and_raises_the_last_error_when_time_is_up() -> None:
    attempts = 0

    async def third_time() -> int:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ConnectionError(f"attempt {attempts}")
        return attempts

    assert await retry(third_time, within=60, on=ConnectionError, pause=0) == 3
    attempts = 0
    with pytest.raises(ConnectionError, match="attempt 1"):
        await retry(third_time, within=0, on=ConnectionError)
    attempts = 0
    with pytest.raises(ConnectionError):
        await retry(third_time, within=60, on=KeyError)


async def test_what_is_repeated_survives_its_errors_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Functions and coroutines alike."""
    done: list[str] = []

    def fails() -> None:
        done.append("function")
        raise ValueError("odd message")

    async def works() -> None:
        done.append("coroutine")

    tasks = [asyncio.create_task(repeat(work, 0.001, f"{work.__name__} failed")) for work in (fails, works)]
    async with asyncio.timeout(10):
        while min(done.count("function"), done.count("coroutine")) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await cancel_and_wait(*tasks)
    assert {record.getMessage() for record in caplog.records} == {"fails failed"}
    assert "odd message" in caplog.text


async def test_a_cancellation_that_other_code_swallows_ends_the_block() -> None:
    reached = []

    async def swallow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            reached.append("swallowed")

    async def loop() -> None:
        while True:
            with keep_cancellation():
                await swallow()
            reached.append("went on")

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reached == ["swallowed"]


async def test_a_limit_within_the_block_or_around_it_stays_a_limit() -> None:
    async def limit_within() -> None:
        with keep_cancellation():
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)

    async def limit_around() -> None:
        async with asyncio.timeout(0.01):
            with keep_cancellation():
                await asyncio.sleep(60)

    for work in (limit_within(), limit_around()):
        with pytest.raises(TimeoutError):
            await work


async def test_locks_of_names_are_forgotten_when_nobody_holds_them() -> None:
    """Of each client that ever moved one stayed."""
    locks, order = KeyedLocks(), []

    async def work(name: str, n: int) -> None:
        async with locks[name]:
            order.append((name, n))
            await asyncio.sleep(0)
            order.append((name, n))

    await asyncio.gather(*(work(name, n) for name in ("a", "b") for n in range(3)))
    of_a = [n for name, n in order if name == "a"]
    assert of_a == [0, 0, 1, 1, 2, 2], "one after the other"
    assert order[:2] == [("a", 0), ("b", 0)], "of two names at the same time"
    for n in range(1000):
        await work(f"client {n}", n)
    assert len(locks) == 0
