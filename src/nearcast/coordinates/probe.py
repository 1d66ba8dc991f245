"""Round trips measured directly: the time a TCP connection takes to a broker's port. No extra service is needed."""

from __future__ import annotations

import asyncio
import contextlib
import time

__all__ = ["connect_ms"]


async def connect_ms(host: str, port: int, limit: float = 5.0) -> float:
    """Milliseconds to connect, which is one round trip. Raises OSError or TimeoutError."""
    async with asyncio.timeout(limit):
        began = time.perf_counter()
        _, writer = await asyncio.open_connection(host, port)
        taken = 1000 * (time.perf_counter() - began)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return taken
