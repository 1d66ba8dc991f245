"""For tests: a wide area for the length of a block, with commands and coroutines that run at its nodes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from functools import partial
from typing import IO, TYPE_CHECKING, Any, TypeVar

from nearcast.lab.wan import lifecycle, namespaces

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.lab.wan.area import Area
    from nearcast.lab.wan.topology import Topology
    from nearcast.site.site import Site

__all__ = ["call_at", "entered_at", "process_at", "sites_at", "wide_area"]

T = TypeVar("T")
SECONDS_TO_END = 5.0
_CANCELLED_AGAIN_AFTER = 30.0


@contextlib.asynccontextmanager
async def wide_area(topology: Topology, *, seed: int = 0) -> AsyncIterator[Area]:
    """A wide area of its own, up inside the block. It ends with this process, however that ends."""
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
            async with asyncio.timeout(SECONDS_TO_END):
                await process.communicate()
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

    thread = asyncio.wrap_future(namespaces.start_inside(area.namespace(node), lambda: asyncio.run(cancellable())))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        unwanted = True
        for loop, task in begun:
            # The loop may have ended by itself just now.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_end, loop, task)
        while not thread.done():  # who cancels again does not make it end sooner
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([thread])
        with contextlib.suppress(asyncio.CancelledError):
            thread.result()
        raise


def _end(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    """Cancel it until it has ended: code of others swallows a cancellation now and then.

    Not again at once: a site takes its time to end, and a second cancellation would make it leave its processes.
    """
    if task.done():
        return
    task.cancel()
    loop.call_later(_CANCELLED_AGAIN_AFTER, _end, loop, task)


@contextlib.asynccontextmanager
async def entered_at(area: Area, node: str, make: Callable[[], AbstractAsyncContextManager[T]]) -> AsyncIterator[T]:
    """What a context manager gives, entered and left at a node, on a loop of its own: do not await it here."""
    loop = asyncio.get_running_loop()
    entered: asyncio.Future[T] = loop.create_future()

    async def hold() -> None:
        async with make() as value:
            loop.call_soon_threadsafe(entered.set_result, value)
            await asyncio.Event().wait()

    holding = asyncio.create_task(call_at(area, node, hold))
    try:
        await asyncio.wait((entered, holding), return_when=asyncio.FIRST_COMPLETED)
        if entered.done():
            yield entered.result()
    finally:
        holding.cancel()
        await asyncio.wait([holding])
        # What went wrong when it was entered or left.
        if not holding.cancelled():
            holding.result()


@contextlib.asynccontextmanager
async def sites_at(area: Area, deployment: Deployment, run_directory: Path) -> AsyncIterator[dict[str, Site]]:
    """The sites of a deployment, each running at the node of its name, whose address is its host."""
    # Here and not above: the emulator and the commands do without NATS.
    from nearcast.site.site import Site

    async with contextlib.AsyncExitStack() as stack:
        sites = {}
        for spec in deployment.sites:
            make = partial(Site, deployment, spec.name, run_directory / spec.name)
            sites[spec.name] = await stack.enter_async_context(entered_at(area, spec.name, make))
        yield sites
