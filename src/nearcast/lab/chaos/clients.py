"""The clients of one node, in a process of their own: publish, subscribe, and note every publication and delivery.

    python -m nearcast.lab.chaos.clients

reads a job from standard input (one line of JSON) and says `ready` when all are connected and subscribed. A line
`stop` ends publishing: it says `stopped` when every receipt has come or its time is over. The next line ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.lab.chaos.deployment import CHANNEL, CHANNEL_TOPIC, DATASET, KINDS, PublisherJob, SubscriberJob
from nearcast.lab.chaos.ledger import LedgerFile
from nearcast.lab.scenarios.processes import READY
from nearcast.nats.tasks import cancel_and_wait

if TYPE_CHECKING:
    from nearcast.client import Client
    from nearcast.message import Message
    from nearcast.nats.connection import Connection

__all__ = ["STOPPED", "ClientsJob"]

STOPPED = "stopped"
_CONNECT_LIMIT = 20.0
_RECEIPT_LIMIT = 10.0
_PUBLISH_LIMIT = 15.0  # s; publishing does not wait for stores, so this is far too long
_TWICE = 10  # every so many publications one asks for two notifications


class ClientsJob(msgspec.Struct, frozen=True):
    """The clients of a node, and the folder of the ledger. spools: where publishers keep what was not acknowledged.

    clock_offset: seconds by which their clock is wrong.
    """

    node: str
    publishers: list[PublisherJob]
    subscribers: list[SubscriberJob]
    folder: str
    spools: str
    clock_offset: float = 0.0


class Publishing:
    """One publisher: steadily, without waiting for receipts, which are noted as they come."""

    def __init__(self, client: Client, job: PublisherJob, ledger: LedgerFile) -> None:
        self._client, self._job, self._ledger = client, job, ledger
        self._name = f"{job.name}.{os.getpid()}"
        self._receipts: set[asyncio.Task[None]] = set()
        self._connection: Connection | None = None
        self._connections = 0

    async def run(self, stopped: asyncio.Event) -> None:
        """Publish until told to stop, then wait for the last receipts."""
        clock = asyncio.get_running_loop().time
        due, n = clock(), 0
        while not stopped.is_set():
            due = max(due + 1 / self._job.rate, clock() - 1.0)  # what was missed for long is not made up for
            await asyncio.sleep(due - clock())
            n += 1
            await self._publish(n)
        if self._receipts:
            await asyncio.wait(self._receipts, timeout=_RECEIPT_LIMIT)

    async def _publish(self, n: int) -> None:
        job, client = self._job, self._client
        count, fields = 2 if n % _TWICE == 0 else 1, self._fields(n)
        self._ledger.note(
            "published", publisher=self._name, n=n, topic=job.topic, count=count, fields=fields,
            home=client.home, path=self._path(),
        )  # fmt: skip
        data = {"publisher": self._name, "n": n, "count": count, **fields}
        try:
            async with asyncio.timeout(_PUBLISH_LIMIT):
                receipt = await self._send(data)
        except Exception as error:  # whatever it is: the ledger says that this one has no receipt
            self._failed(n, error)
            return
        if job.spool:
            self._ledger.note("kept", publisher=self._name, n=n)
        task = asyncio.create_task(self._note_receipt(n, receipt))
        self._receipts.add(task)
        task.add_done_callback(self._receipts.discard)

    def _path(self) -> str:
        """The connection that a publication leaves by: while its broker is away, the next one."""
        connection = self._client.connection
        if connection is not self._connection:
            self._connection = connection
            self._connections += 1
        return f"{self._connections}/{self._client.reconnects + (not connection.is_connected)}"

    def _fields(self, n: int) -> dict[str, Any]:
        """What else the payload has."""
        return {}

    async def _send(self, data: dict[str, Any]) -> asyncio.Future[Any]:
        return await self._client.publish_nowait(self._job.topic, data)

    async def _note_receipt(self, n: int, future: asyncio.Future[Any]) -> None:
        try:
            receipt = await future
        except Exception as error:
            self._failed(n, error)
        else:
            self._ledger.note("receipt", publisher=self._name, n=n, id=receipt.id, stores=receipt.stores)

    def _failed(self, n: int, error: Exception) -> None:
        self._ledger.note("failed", publisher=self._name, n=n, reason=f"{type(error).__name__}: {error}")


class Feeding(Publishing):
    """A publisher that feeds the data cluster: records of every kind in turn."""

    def _fields(self, n: int) -> dict[str, Any]:
        return {"kind": KINDS[n % len(KINDS)]}

    async def _send(self, data: dict[str, Any]) -> asyncio.Future[Any]:
        del data["count"]
        return asyncio.create_task(self._client.feed(DATASET, data))


def note_delivery(ledger: LedgerFile, job: SubscriberJob, client: Client, message: Message) -> None:
    """A message came, or results of the channel."""
    for data in message.data["rows"] if job.values else [message.data]:
        ledger.note(
            "delivered", subscriber=job.name, process=os.getpid(), publisher=data["publisher"], n=data["n"],
            part=data.get("part", 0), topic=CHANNEL_TOPIC if job.values else message.topic, id=message.id,
            home=client.home, late=message.late,
        )  # fmt: skip


async def _note_dead(client: Client, topic: str, ledger: LedgerFile) -> None:
    async for message in client.dead_letters(topic):
        data = message.data
        ledger.note("dead", publisher=data["publisher"], n=data["n"], topic=message.topic, reason=message.reason)


async def run(job: ClientsJob) -> None:
    """Connect all, publish until told to stop, stay subscribed until told to end."""
    ledger = LedgerFile(Path(job.folder) / f"clients-{job.node}-{os.getpid()}.jsonl")
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for publisher in job.publishers:
        ledger.note("client", name=f"{publisher.name}.{os.getpid()}", node=job.node)
    for subscriber in job.subscribers:
        ledger.note("client", name=subscriber.name, node=job.node)
    async with contextlib.AsyncExitStack() as stack:

        async def subscribe(each: SubscriberJob) -> None:
            client = await stack.enter_async_context(_client(each))
            if each.dead_letters:
                stack.push_async_callback(cancel_and_wait, asyncio.create_task(_note_dead(client, each.topic, ledger)))
                return
            note = partial(note_delivery, ledger, each, client)
            if each.values:
                await client.subscribe(channel=CHANNEL, params=each.values, callback=note)
            else:
                await client.subscribe(each.topic, callback=note)
            ledger.note("subscribed", subscriber=each.name, process=os.getpid(), topic=each.topic, values=each.values)

        async def prepare(each: PublisherJob) -> Publishing:
            kind = Feeding if each.topic == CHANNEL_TOPIC else Publishing
            spool = Path(job.spools) / f"{each.name}.spool" if each.spool else None
            return kind(await stack.enter_async_context(_client(each, spool)), each, ledger)

        await asyncio.gather(*map(subscribe, job.subscribers))
        publishers = await asyncio.gather(*map(prepare, job.publishers))
        print(READY, flush=True)
        publishing = asyncio.gather(*(each.run(stopped) for each in publishers))
        await loop.run_in_executor(None, sys.stdin.readline)
        stopped.set()
        await publishing
        print(STOPPED, flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
    ledger.close()


def _client(job: PublisherJob | SubscriberJob, spool: Path | None = None) -> Client:
    from nearcast.client import connect  # after the clock was set: modules may keep its functions

    if job.coordinated:
        return connect(coordinator=job.urls, name=job.name, mobile=job.mobile, timeout=_CONNECT_LIMIT, spool=spool)
    return connect(job.urls, name=job.name, timeout=_CONNECT_LIMIT, spool=spool)


def set_clock(offset: float) -> None:
    """Have all that asks for the time of day in this process, from now on, get a wrong one."""
    time_of_day, nanoseconds = time.time, time.time_ns
    time.time = lambda: time_of_day() + offset
    time.time_ns = lambda: nanoseconds() + int(offset * 1e9)


def main() -> None:
    """Do the job of standard input."""
    import uvloop

    job = msgspec.json.decode(sys.stdin.readline(), type=ClientsJob)
    if job.clock_offset:
        set_clock(job.clock_offset)
    uvloop.run(run(job))


if __name__ == "__main__":
    main()
