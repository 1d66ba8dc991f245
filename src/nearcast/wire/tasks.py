"""Ending tasks for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["end", "together"]

_log = logging.getLogger(__name__)
_ATTEMPTS = 20
T = TypeVar("T")


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks until they have ended; the one that calls is left out.

    Once is not always enough: nats-py takes a cancellation that comes while it hands data to its socket for its own
    and goes on, and so does `asyncio.wait_for` of Python 3.11 when its future is done at the same moment. A task that
    still goes on after ten seconds is reported and left: whoever closes something must not hang because of it. Who is
    cancelled meanwhile ends the tasks all the same, and is cancelled then.
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
        _log.error("%s cannot be ended: %s", task.get_name(), task.get_stack(limit=1))
    for task in ended - left:
        if not task.cancelled():
            task.exception()  # seen; whoever ends a task does not want its outcome any more
    if cancelled is not None:
        raise cancelled


async def together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """All results, in order. When one fails, or this is cancelled, the others are ended first: none goes on alone."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        if tasks:  # not `gather`: cancelled once, it cancels once, and waits for a task that goes on all the same
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()  # raises what it raised
        return [task.result() for task in tasks]
    finally:
        await end(*tasks)
