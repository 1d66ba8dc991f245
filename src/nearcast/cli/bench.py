"""`nearcast bench`: how many messages a second go through a broker, and how long they take."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from typing import Annotated, Any

import typer
import uvloop

import nearcast
from nearcast.cli.coordinator_call import DEFAULT_URL, broker_option
from nearcast.cli.output import JsonOption, print_fields, waiting_notice
from nearcast.errors import NearcastError
from nearcast.nats.tasks import cancel_and_wait

_STALLED_SECONDS = 10.0


def command(
    messages: Annotated[int, typer.Option(min=1, help="Messages of each publisher.")] = 20_000,
    size: Annotated[int, typer.Option(min=1, max=64 * 1024 * 1024, help="Bytes of each payload.")] = 128,
    publishers: Annotated[int, typer.Option(min=1)] = 1,
    subscribers: Annotated[int, typer.Option(min=0)] = 1,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Messages per second and publisher; all it can.")] = None,
    url: Annotated[str, broker_option("The broker to measure.")] = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Publish and receive on a topic of its own, and measure. Example: nearcast bench --messages 10000 --rate 1000"""
    with waiting_notice(f"Measuring {messages * publishers} messages through {url}."):
        figures = uvloop.run(_measure(messages, size, publishers, subscribers, rate, url))
    print_fields(figures, as_json)


async def _measure(
    messages: int, size: int, publishers: int, subscribers: int, rate: float | None, url: str
) -> dict[str, Any]:
    topic, expected = f"bench.{secrets.token_hex(4)}", messages * publishers
    samples: list[float] = []
    stalled = _STALLED_SECONDS + (1 / rate if rate is not None else 0.0)
    async with nearcast.connect(url) as sender, nearcast.connect(url) as receiver:
        subscriptions = [receiver.subscribe(topic, buffer=expected + 1) for _ in range(subscribers)]
        for subscription in subscriptions:
            await subscription
        await receiver.flush()

        async def publish() -> None:
            payload, began = b"x" * size, time.perf_counter()
            for n in range(messages):
                if rate is not None and (pause := began + n / rate - time.perf_counter()) > 0:
                    await asyncio.sleep(pause)
                await sender.publish(topic, payload)

        async def receive(subscription: nearcast.Subscription) -> None:
            for _ in range(expected):
                async with asyncio.timeout(stalled):
                    message = await anext(subscription)
                samples.append(1000 * (time.time() - message.stamp.published_us / 1e6))

        began = time.perf_counter()
        receiving = [asyncio.create_task(receive(subscription)) for subscription in subscriptions]
        try:
            await asyncio.gather(*(publish() for _ in range(publishers)))
            await sender.flush()
            published = time.perf_counter() - began
            try:
                await asyncio.gather(*receiving)
            except TimeoutError:
                raise NearcastError(
                    f"{len(samples)} of {expected * subscribers} messages arrived; none for {stalled:g} s"
                ) from None
        finally:
            await cancel_and_wait(*receiving)
        received = time.perf_counter() - began
    figures: dict[str, Any] = {
        "messages": expected,
        "bytes_per_message": size,
        "published_per_s": round(expected / published),
    }
    if samples:
        cuts = statistics.quantiles(samples, n=100, method="inclusive") if len(samples) > 1 else samples * 99
        figures |= {"received_per_s": round(len(samples) / received)}
        figures |= {f"latency_p{share}_ms": round(cuts[share - 1], 3) for share in (50, 90, 99)}
    return figures
