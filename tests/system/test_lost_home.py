"""A client whose broker goes away in the moment in which it has moved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import nearcast
from nearcast.nats.tasks import retry
from nearcast.site.ports import free_ports
from nearcast.site.servers import server_binary, server_is_ready
from nearcast.site.supervisor import SupervisedProcess
from nearcast.testing import until


@pytest.mark.timeout(120)  # interrupts a task that never waits; the others would not run any more
async def test_a_client_that_moved_and_lost_its_broker_does_not_block_its_process(tmp_path: Path) -> None:
    port = free_ports()
    broker = SupervisedProcess(
        "broker",
        [server_binary(), "-a", "127.0.0.1", "-p", str(port)],
        tmp_path / "broker.log",
        lambda: retry(lambda: server_is_ready("127.0.0.1", port), within=30, on=OSError),
    )
    await broker.start()
    async with nearcast.connect(coordinator=f"nats://127.0.0.1:{port}", name="car7") as client:
        assert client.coordination is not None
        # The first report is over and the next one is not due: what it waits for is that it moves.
        reports = next(task for task in asyncio.all_tasks() if task.get_name() == "reports of car7")
        await until(lambda: _waits_in(reports) == "Event.wait")
        await broker.stop()
        await until(lambda: not client.connection.is_connected)
        client.coordination.rehoming.on_moved("")
        await asyncio.sleep(0.5)
        assert not reports.done()


def _waits_in(task: asyncio.Task[None]) -> str:
    """The innermost coroutine in which a task is suspended."""
    inner: Any = task.get_coro()
    while hasattr(inner.cr_await, "cr_code"):
        inner = inner.cr_await
    return str(inner.cr_code.co_qualname)
