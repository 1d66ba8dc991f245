"""Tasks with an owner: spawn, cancel for good, run together, one at a time, again and again, try again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

__all__ = ["KeyedLocks", "TaskSet", "cancel_and_wait", "gather_or_cancel", "keep_cancellation", "repeat", "retry"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 20
T = TypeVar("T")


class TaskSet:
    """Background tasks that somebody owns: each is forgotten when it is done, and all end with `cancel`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine in the background. What it raises is logged, unless somebody awaits the task first."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def cancel(self) -> None:
        """End all that is still running."""
        await cancel_and_wait(*self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s failed", task.get_name(), exc_info=error)


class KeyedLocks:
    """A lock for each name, forgotten when nobody holds it or waits for it."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def __getitem__(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def __len__(self) -> int:
        return len(self._locks)


@contextlib.contextmanager
def keep_cancellation() -> Iterator[None]:
    """A cancellation that code in this block takes for its own ends the block all the same.

    For code of others: nats-py swallows some, and so does `asyncio.wait_for` of Python 3.11 when its future is done
    at the same moment. A loop around such code, cancelled once, would never end.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


async def cancel_and_wait(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks until they have ended; the one that calls is left out.

    Once is not always enough (see `keep_cancellation`). A task that still runs after ten seconds is reported and left:
    a `close` must not hang because of it. A caller that is cancelled meanwhile ends the tasks all the same, and is
    cancelled then.
    """
    left = {task for task in tasks if task is not None and task is not asyncio.current_task()}
    ended = set(left)
    cancelled: asyncio.CancelledError | None = None
    for _ in range(_ATTEMPTS):
        for task in left:
            task.cancel()
        if left:
            try:
                await asyncio.wait(left, timeout=0.5)
            except asyncio.CancelledError as error:
                cancelled = error
            left = {task for task in left if not task.done()}
    for task in left:
        _log.error("task %s does not end: %s", task.get_name(), task.get_stack(limit=1))
    for task in ended - left:
        if not task.cancelled():
            task.exception()  # retrieved; whoever cancels a task does not want its outcome any more
    if cancelled is not None:
        raise cancelled


async def gather_or_cancel(*work: Coroutine[Any, Any, T]) -> list[T]:
    """All results, in order. When one fails, or this is cancelled, the others are cancelled and awaited first."""
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        if tasks:  # not `gather`: cancelled once, it cancels once, and waits for a task that continues all the same
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()  # raises what it raised
        return [task.result() for task in tasks]
    finally:
        await cancel_and_wait(*tasks)


async def repeat(work: Callable[[], Awaitable[None] | None], period: float, problem: str) -> NoReturn:
    """Do this every so many seconds until cancelled. What it raises is logged as this problem, and ends nothing."""
    while True:
        await asyncio.sleep(period)
        try:
            waiting = work()
            if waiting is not None:
                await waiting
        except Exception:
            _log.exception("%s", problem)


async def retry(
    attempt: Callable[[], Awaitable[T]],
    *,
    within: float,
    on: type[Exception] | tuple[type[Exception], ...],
    pause: float = 0.1,
) -> T:
    """The first result that is not one of these errors; after `within` seconds the last error is raised."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    while True:
        try:
            return await attempt()
        except on:
            if clock() >= deadline:
                raise
        await asyncio.sleep(pause)
