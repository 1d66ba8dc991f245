"""A broker that hangs (SIGSTOP) is left like one that died: by answers, not by the end of its connection."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.suspend import suspend

import nearcast
from nearcast.nats.connection import ConnectionLostError
from nearcast.nats.tasks import cancel_and_wait, retry
from nearcast.site.ports import free_ports
from nearcast.site.servers import server_binary, server_is_ready
from nearcast.site.supervisor import SupervisedProcess
from nearcast.testing import until


async def test_clients_of_a_hung_broker_go_to_the_next_one_whether_they_read_or_write(tmp_path: Path) -> None:
    port = free_ports(2)
    brokers = [
        SupervisedProcess(
            f"broker {n}",
            [server_binary(), "-a", "127.0.0.1", "-p", str(port + n)],
            tmp_path / f"{n}.log",
            lambda n=n: retry(lambda: server_is_ready("127.0.0.1", port + n), within=30, on=OSError),
        )
        for n in range(2)
    ]
    for broker in brokers:
        await broker.start()
    urls = [f"nats://127.0.0.1:{port + n}" for n in range(2)]
    async with nearcast.connect(urls) as reader, nearcast.connect(urls) as writer:
        suspend(brokers[0].pid)

        async def write() -> None:  # more than its socket takes: what is unsent must not keep the connection open
            while True:
                try:
                    await writer.publish("gps", bytes(100_000))
                except ConnectionLostError:
                    await asyncio.sleep(0.1)

        writing = asyncio.create_task(write())
        try:
            await until(lambda: reader.reconnects == writer.reconnects == 1, limit=60)
        finally:
            await cancel_and_wait(writing)
            os.kill(brokers[0].pid, signal.SIGCONT)
    for broker in brokers:
        await broker.stop()
