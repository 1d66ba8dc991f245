"""The clients of one node, in a process of their own: publish, subscribe, note what was sent and what came.

    python -m nearcast.lab.scenarios.clients

reads a job from standard input (one line of JSON), says `ready` when all clients are connected, reads the time at which
the measured time begins (Unix seconds), and writes what happened to the job's file. All processes share one clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import uvloop

from nearcast.client import Client, connect
from nearcast.errors import NearcastError
from nearcast.lab.scenarios.processes import READY

if TYPE_CHECKING:
    from nearcast.message import Message

__all__ = ["ClientJob", "ClientResults", "NodeJob", "note_received", "now_us"]

_CONNECT_LIMIT = 30.0


class ClientJob(msgspec.Struct, frozen=True):
    """One client. number: its own among all of the run. urls: of its home, or with `coordinated` of any broker.

    subscribes: topic, start and end in seconds of the measured time; no start: before it, no end: after it.
    """

    number: int
    name: str
    urls: list[str]
    coordinated: bool
    mobile: bool
    topic: str
    phase: float
    subscribes: list[tuple[str, float | None, float | None]]


class NodeJob(msgspec.Struct, frozen=True):
    """The clients of a node, when they publish (before and within the measured time), and where results go."""

    clients: list[ClientJob]
    rate: float
    size: int
    warm_up: float
    seconds: float
    drain: float
    results: str


class ClientResults(msgspec.Struct):
    """What happened; times are Unix microseconds, clients are numbers.

    published: client, its count, when it was due, when it was. received: client, publisher, publisher's count, when.
    subscribed: client, topic, since when, until when. failed: publications that raised an error.
    """

    published: list[tuple[int, int, int, int]] = []
    received: list[tuple[int, int, int, int]] = []
    subscribed: list[tuple[int, str, int, int]] = []
    failed: list[str] = []


async def run(job: NodeJob, results: ClientResults) -> None:
    """Connect all, wait for the start, play, and stay until late messages have come."""
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        clients = await asyncio.gather(*(stack.enter_async_context(_connect(each)) for each in job.clients))
        print(READY, flush=True)
        start = float(await loop.run_in_executor(None, sys.stdin.readline))
        end = start + job.seconds
        spans = [
            asyncio.create_task(_subscribe(client, each, span, start, end + job.drain, results))
            for client, each in zip(clients, job.clients, strict=True)
            for span in each.subscribes
        ]
        publishing = (
            _publish(client, each, job, start, results) for client, each in zip(clients, job.clients, strict=True)
        )
        await asyncio.gather(*publishing, *spans)


def _connect(job: ClientJob) -> Client:
    if job.coordinated:
        return connect(coordinator=job.urls, name=job.name, mobile=job.mobile, timeout=_CONNECT_LIMIT)
    return connect(job.urls, name=job.name, timeout=_CONNECT_LIMIT)


async def _subscribe(
    client: Client,
    job: ClientJob,
    span: tuple[str, float | None, float | None],
    start: float,
    end: float,
    results: ClientResults,
) -> None:
    topic, begin, until = span
    if begin is not None:
        await asyncio.sleep(start + begin - time.time())
    async with client.subscribe(topic, callback=partial(note_received, job.number, results)):
        begun = now_us()
        await asyncio.sleep((end if until is None else min(end, start + until)) - time.time())
        results.subscribed.append((job.number, topic, begun, now_us()))


def note_received(number: int, results: ClientResults, message: Message) -> None:
    """A message came, whose payload begins with its publisher's number and count."""
    now = now_us()
    publisher, count = message.payload.split(maxsplit=2)[:2]
    results.received.append((number, int(publisher), int(count), now))


async def _publish(client: Client, job: ClientJob, node: NodeJob, start: float, results: ClientResults) -> None:
    """At a steady rate, from the warm-up to the end of the measured time; a late one is not skipped."""
    for count in range(int((node.warm_up + node.seconds) * node.rate)):
        due = start - node.warm_up + (count + job.phase) / node.rate
        await asyncio.sleep(due - time.time())
        payload = (b"%d %d " % (job.number, count)).ljust(node.size, b".")
        at = now_us()
        try:
            await client.publish(job.topic, payload)
        except NearcastError as error:
            results.failed.append(f"{job.name}: {error}")
        else:
            results.published.append((job.number, count, int(due * 1e6), at))


def now_us() -> int:
    """Unix microseconds."""
    return time.time_ns() // 1000


def main() -> None:
    """Do the job of standard input."""
    job = msgspec.json.decode(sys.stdin.readline(), type=NodeJob)
    results = ClientResults()
    uvloop.run(run(job, results))
    Path(job.results).write_bytes(msgspec.msgpack.encode(results))


if __name__ == "__main__":
    main()
