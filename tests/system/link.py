"""A link between a client and a broker that tests can cut: silently, as a wide area does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Link:
    """Forwards TCP connections to a port of this machine. While it is cut nothing passes, and nobody is told."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Nothing passes from now on."""
        self._open.clear()

    def restore(self) -> None:
        """New connections pass; those from before are reset."""
        for writer in self._writers:
            writer.transport.abort()
        self._open.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(back)
            await asyncio.gather(self._forward(reader, back), self._forward(there, writer))
        except (OSError, asyncio.CancelledError):
            pass  # cut off, or the test is over
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._open.wait()
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


@contextlib.asynccontextmanager
async def link_to(target: int) -> AsyncIterator[Link]:
    """`async with link_to(port) as link`: connect to `link.url`."""
    link = Link(target)
    await link.start()
    try:
        yield link
    finally:
        await link.stop()
