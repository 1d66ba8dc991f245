"""`nearcast web` as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

from tests.system.test_cli import NEARCAST


@contextlib.asynccontextmanager
async def console_process(*arguments: str, **environment: str) -> AsyncIterator[list[str]]:
    """What it says until it is ready, in lines. It must end well, and without a traceback."""
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, "web", "--port", "0", *arguments, env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(60):
            while not said or not said[-1].startswith("Ready."):
                line = await process.stdout.readline()
                assert line, (await process.stderr.read()).decode()
                said.append(line.decode())
        yield said
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 0
        assert b"Traceback" not in errors, errors.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
