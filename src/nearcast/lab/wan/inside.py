"""A wide area for as long as a block runs, with commands and coroutines at its nodes: what tests need."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import IO, TYPE_CHECKING, Any, TypeVar

from nearcast.lab.wan import lifecycle, namespaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from nearcast.lab.wan.areas import Area
    from nearcast.lab.wan.topology import Topology

__all__ = ["call_at", "process_at", "wide_area"]

T = TypeVar("T")
SECONDS_TO_END = 5.0


@contextlib.asynccontextmanager
async def wide_area(topology: Topology, *, seed: int = 0) -> AsyncIterator[Area]:
    """A wide area of its own, up inside the block. It goes with this process, however that ends."""
    name = f"t{secrets.token_hex(4)}"
    area, emulator = await asyncio.to_thread(lifecycle.start, topology, name, seed=seed, leased=True)
    try:
        yield area
    finally:
        await asyncio.to_thread(lifecycle.stop, name, emulator)


@contextlib.asynccontextmanager
async def process_at(
    area: Area, node: str, *command: str, output: int | IO[bytes] = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A command that runs at a node inside the block: a broker, a site, a load generator."""
    process = await asyncio.create_subprocess_exec(
        *area.command(node, *command), stdout=output, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.communicate(), SECONDS_TO_END)
        except TimeoutError:
            process.kill()
            await process.communicate()


async def call_at(area: Area, node: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine that runs at a node: in a thread inside its namespace, on a loop of its own.

    Every connection it opens starts at the node, and it shares this process's clock and memory.
    """
    begun: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    unwanted = False

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.append((asyncio.get_running_loop(), task))
        if unwanted:
            raise asyncio.CancelledError
        return await call()

    thread = asyncio.wrap_future(
        namespaces.start_inside(area.namespace(node), lambda: asyncio.run(cancellable()))
    )
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        unwanted = True
        for loop, task in begun:
            # The loop may have ended by itself just now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)
        await asyncio.wait([thread])
        # Whatever it came to, nobody wants it any more.
        with contextlib.suppress(asyncio.CancelledError):
            thread.exception()
        raise
