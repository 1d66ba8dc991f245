"""p90 of topics that share a real worker, for the latency model: run after run, each with its own topics."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nearcast.client import Client, connect
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.message import Message
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites

__all__ = ["ProfileRun", "draw", "measure", "one_site"]

_PATIENCE = 5
_MODULE = "nearcast.lab.profiling.cpu_processor"


@dataclass(frozen=True)
class ProfileRun:
    """Topics that share the worker for a while: messages per second and milliseconds of processing of each."""

    number: int
    rates: tuple[float, ...]
    processing_ms: tuple[float, ...]


def draw(number: int, k: int, seed: int, processing_ms: tuple[float, float]) -> ProfileRun:
    """The topics of a run: 1 to k of them in turn, sharing a load of at most 0.9. The same for the same seed."""
    rng = np.random.default_rng((seed, number))
    topics = 1 + number % k
    each = rng.uniform(*processing_ms, topics)
    load = rng.uniform(0.1, 0.9) * rng.dirichlet(np.full(topics, 2.0))
    return ProfileRun(number, tuple(np.maximum(1000 * load / each, 0.5).tolist()), tuple(each.tolist()))


@contextlib.asynccontextmanager
async def one_site(k: int) -> AsyncIterator[str]:
    """A broker and one worker that has k topics; its address."""
    with tempfile.TemporaryDirectory() as folder:
        site = SiteSpec("profile", port=free_ports(10))
        topics = tuple(TopicSpec(f"profile.{n}", ("profile",)) for n in range(k))
        async with run_sites(Deployment((site,), topics, (_MODULE,)), Path(folder)):
            yield site.url


async def measure(run: ProfileRun, url: str, seconds: float, subscribers: int = 1) -> list[float]:
    """p90 of each topic in milliseconds, from publication to notification; the first fifth is left out.

    subscribers: of the first topic, each a client of its own; its p90 is over all of them. The other topics have one.
    """
    async with contextlib.AsyncExitStack() as stack:
        publisher, subscriber = [await stack.enter_async_context(connect(url)) for _ in range(2)]
        latencies: list[list[float]] = [[] for _ in run.rates]
        more = [await stack.enter_async_context(connect(url)) for _ in range(subscribers - 1)]
        begin = time.time() + seconds / 5
        for n, found in enumerate(latencies):
            await subscriber.subscribe(f"profile.{n}", callback=_noting(found, begin))
        for each in more:
            await each.subscribe("profile.0", callback=_noting(latencies[0], begin))
        counted = await subscriber.subscribe("profile.*")
        sent = await asyncio.gather(*(_publish(publisher, run, n, seconds) for n in range(len(run.rates))))
        # All of them: those that wait longest count most, and the next run begins with an idle worker.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE * seconds):
                while counted.received < sum(sent):  # noqa: ASYNC110 - messages are counted, not announced
                    await asyncio.sleep(0.02)
    return [float(np.percentile(found, 90)) if found else float("nan") for found in latencies]


def _noting(found: list[float], begin: float) -> Callable[[Message], None]:
    def note(message: Message) -> None:
        published = message.stamp.published_us / 1e6
        if published >= begin:
            found.append(1000 * (time.time() - published))

    return note


async def _publish(client: Client, run: ProfileRun, n: int, seconds: float) -> int:
    """Exponential pauses, as the public code of the co-location paper has them; how many were sent is returned."""
    rng = np.random.default_rng((run.number, n))
    payload, clock = str(run.processing_ms[n]).encode(), time.perf_counter
    end, due, sent = clock() + seconds, clock(), 0
    while (due := due + rng.exponential(1 / run.rates[n])) < end:
        await asyncio.sleep(max(0.0, due - clock()))
        await client.publish(f"profile.{n}", payload)
        sent += 1
    return sent
