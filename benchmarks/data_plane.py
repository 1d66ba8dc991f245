"""Speed of the data plane: ratios against bare nats-py, measured in the same run, repetitions interleaved.

.venv/bin/python -m benchmarks.data_plane
    [throughput|latency|processor|marks|quorum|history|memory|repair|catch_up|lost_site …]
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import uvloop
from benchmarks.data_plane_catch_up import catch_up
from benchmarks.data_plane_lost_site import lost_site
from benchmarks.data_plane_marks import marks
from benchmarks.data_plane_repair import repair
from benchmarks.measure import Figure, interleaved, print_table, rate, ratio

import nats
import nearcast
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.site.ports import free_ports
from nearcast.site.servers import server_binary
from nearcast.site.site import Site, run_sites
from nearcast.site.worker.spool import Spool

SIZES = (128, 4096)
PROCESSORS = """
from nearcast import processor
@processor("echo.*", spool={spool}, timeout=30)
def echo(message, spool):
    return message.payload
"""
ECHO = """
import asyncio, sys, nats, uvloop
async def main(url):
    nc = await nats.connect(url)
    async def cb(msg):
        await nc.publish("ntf.echo.x", msg.data, headers=msg.headers)
    await nc.subscribe("pub.echo.x", queue="processors", cb=cb)
    await nc.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()
uvloop.run(main(sys.argv[1]))
"""


@contextlib.contextmanager
def bare_server() -> Iterator[str]:
    """A plain nats-server."""
    port = free_ports(1)
    process = subprocess.Popen([server_binary(), "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def bare_echo(url: str) -> Iterator[None]:
    """A process that sends back what it gets."""
    process = subprocess.Popen([sys.executable, "-c", ECHO, url], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.asynccontextmanager
async def city(
    names: tuple[str, ...], topics: tuple[TopicSpec, ...], spool: int = 1000
) -> AsyncIterator[dict[str, Site]]:
    """Real sites with stores."""
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as folder:
        base = Path(folder)
        (base / "bench_processors.py").write_text(PROCESSORS.format(spool=spool))
        port = free_ports(10 * len(names))
        specs = []
        for n, name in enumerate(names):
            (base / name).mkdir()
            specs.append(SiteSpec(name, port=port + 10 * n, store=StoreSpec(base / name)))
        prefill(base, names[0], topics, spool)
        deployment = Deployment(tuple(specs), topics, ("bench_processors",))
        async with run_sites(deployment, base / "run", [str(base)]) as sites:
            await asyncio.sleep(0.5)
            yield sites


def prefill(base: Path, site: str, topics: tuple[TopicSpec, ...], size: int) -> None:
    """Let the echo topic's spool be full from the start."""
    if any(topic.processed for topic in topics):
        folder = base / "run" / site / "spools-worker-0"
        folder.mkdir(parents=True)
        spool = Spool(folder / f"{subjects.stream_name('echo.x')}.spool", size + 512)
        for n in range(size):
            spool.append(b"p:%b:1794778111725574:%d" % (site.encode(), n), b"x" * 128)
        spool.close()


async def bare_throughput(url: str, payload: bytes, number: int, header: bool) -> float:
    out, back = await nats.connect(url), await nats.connect(url)
    done, got = asyncio.Event(), 0

    async def count(msg: Any) -> None:
        nonlocal got
        got += 1
        if got == number:
            done.set()

    await back.subscribe("pub.x", cb=count)
    await back.flush()
    start = time.perf_counter()
    for n in range(number):
        if header:
            headers = {"Nats-Msg-Id": f"c0ffee123456:tokyo:1794778111725574:{n}"}
            await out.publish("pub.x", payload, headers=headers)
        else:
            await out.publish("pub.x", payload)
    await done.wait()
    seconds = time.perf_counter() - start
    await out.close()
    await back.close()
    return number / seconds


async def sdk_throughput(url: str, payload: bytes, number: int) -> float:
    async with nearcast.connect(url) as out, nearcast.connect(url) as back:
        async with back.subscribe("x", buffer=number) as subscription:
            start = time.perf_counter()

            async def publish() -> None:
                for _ in range(number):
                    await out.publish("x", payload)

            publishing = asyncio.create_task(publish())
            for _ in range(number):
                await anext(subscription)
            seconds = time.perf_counter() - start
            await publishing
    return number / seconds


async def throughput() -> list[Figure]:
    """Publish to deliver through one broker."""
    figures = []
    with bare_server() as url:
        for size in SIZES:
            payload, number = b"x" * size, 100_000 if size < 1000 else 30_000
            found = await interleaved(
                {
                    "sdk": partial(sdk_throughput, url, payload, number),
                    "header": partial(bare_throughput, url, payload, number, True),
                    "plain": partial(bare_throughput, url, payload, number, False),
                }
            )
            for baseline, label, target in (("header", "the same header", "≥ 0.9"), ("plain", "no header", "≥ 0.5")):
                what = f"SDK, {size} B, over bare nats-py with {label}"
                figures.append(
                    Figure(what, rate(found["sdk"]), rate(found[baseline]), ratio(found, "sdk", baseline), target)
                )
    return figures


async def latency() -> list[Figure]:
    """One-way latency at 1,000 messages a second."""
    number, pause = 2000, 0.001

    async def paced(send: Callable[[bytes], Awaitable[Any]]) -> None:
        start = time.perf_counter()
        for n in range(number):
            await asyncio.sleep(max(0.0, start + n * pause - time.perf_counter()))
            await send(b"%d" % time.perf_counter_ns() + b"x" * 100)

    def one_way(payload: bytes) -> float:
        return (time.perf_counter_ns() - int(payload.rstrip(b"x"))) / 1e6

    async def bare(url: str) -> float:
        out, back = await nats.connect(url), await nats.connect(url)
        took: list[float] = []

        async def note(msg: Any) -> None:
            took.append(one_way(msg.data))

        await back.subscribe("pub.x", cb=note)
        await back.flush()
        await paced(lambda payload: out.publish("pub.x", payload))
        await asyncio.sleep(0.1)
        await out.close()
        await back.close()
        return statistics.median(took)

    async def sdk(url: str) -> float:
        took: list[float] = []
        async with nearcast.connect(url) as out, nearcast.connect(url) as back:
            await back.subscribe("x", callback=lambda message: took.append(one_way(message.payload)))
            await paced(lambda payload: out.publish("x", payload))
            await asyncio.sleep(0.1)
        return statistics.median(took)

    with bare_server() as url:
        found = await interleaved({"sdk": lambda: sdk(url), "bare": lambda: bare(url)})
    mine, theirs = (f"{statistics.median(found[name]):.3f} ms" for name in ("sdk", "bare"))
    return [Figure("p50 one way at 1,000 msg/s", mine, theirs, ratio(found, "sdk", "bare"), "≤ 1.3")]


async def echoes(url: str, payload: bytes, number: int) -> float:
    """Publish to whoever echoes and count what comes back. The same driver for both echoes: bare nats-py's client."""
    out, back = await nats.connect(url), await nats.connect(url)
    done, got = asyncio.Event(), 0

    async def count(msg: Any) -> None:
        nonlocal got
        got += 1
        if got == number:
            done.set()

    await back.subscribe("ntf.echo.x", cb=count)
    await back.flush()
    await asyncio.sleep(0.1)
    headers = {"Nats-Msg-Id": "c0ffee123456:here:1794778111725574:1"}
    start = time.perf_counter()
    for _ in range(number):
        await out.publish("pub.echo.x", payload, headers=headers)
    async with asyncio.timeout(120):
        await done.wait()
    seconds = time.perf_counter() - start
    await out.close()
    await back.close()
    return number / seconds


async def processor() -> list[Figure]:
    """A trivial processor against a bare queue-group echo, each in processes of its own."""
    figures = []
    for spool in (10, 1000, 100_000):
        async with city(("here",), (TopicSpec("echo.x", ("here",)),), spool) as sites:
            with bare_server() as url, bare_echo(url):
                for size in SIZES if spool == 1000 else SIZES[:1]:
                    payload, number = b"x" * size, 20_000 if size < 1000 else 10_000
                    site = sites["here"].spec.url
                    runs = {
                        "ours": partial(echoes, site, payload, number),
                        "bare": partial(echoes, url, payload, number),
                    }
                    found = await interleaved(runs)
                    what = f"processor, {size} B, spool {spool:,}, over a bare echo"
                    figures.append(
                        Figure(what, rate(found["ours"]), rate(found["bare"]), ratio(found, "ours", "bare"), "≥ 0.5")
                    )
    return figures


async def quorum() -> list[Figure]:
    """Publications acknowledged by stores, many under way, against JetStream's own pipelined publish."""
    figures = []
    for names in (("a",), ("a", "b", "c")):
        for size in SIZES:
            payload, number = b"x" * size, 5000 if size < 1000 else 2000
            topics = (TopicSpec("log", replicas=names, quorum=len(names)), TopicSpec("bare", replicas=names))
            async with city(names, topics) as sites:
                url = sites["a"].spec.url

                async def sdk(url: str = url, payload: bytes = payload, number: int = number) -> float:
                    async with nearcast.connect(url) as client:
                        await client.publish("log", payload)
                        start = time.perf_counter()
                        receipts = [await client.publish_nowait("log", payload, timeout=60) for _ in range(number)]
                        for receipt in receipts:
                            await receipt
                        return number / (time.perf_counter() - start)

                async def bare(url: str = url, payload: bytes = payload, number: int = number) -> float:
                    connection = await nats.connect(url)
                    js = connection.jetstream(publish_async_max_pending=4096)
                    await js.publish("pub.bare", payload)
                    start = time.perf_counter()
                    futures = [
                        await js.publish_async("pub.bare", payload, headers={"Nats-Msg-Id": f"{time.time_ns()}"})
                        for _ in range(number)
                    ]
                    for future in futures:
                        await future
                    seconds = time.perf_counter() - start
                    await connection.close()
                    return number / seconds

                found = await interleaved({"sdk": sdk, "bare": bare})
            what = f"quorum {len(names)} of {len(names)}, {size} B, over JetStream publish_async (waits for the first)"
            figures.append(Figure(what, rate(found["sdk"]), rate(found["bare"]), ratio(found, "sdk", "bare"), "≥ 0.7"))
    return figures


async def history() -> list[Figure]:
    """One message in a hundred out of 100,000: filtered at the store against fetched whole."""
    total = 100_000
    async with city(("here", "there"), (TopicSpec("log", replicas=("there",), quorum=1),)) as sites:
        async with nearcast.connect(sites["here"].spec.url) as client:
            records = ({"n": n, "hundredth": n % 100 == 0, "text": "x" * 100} for n in range(total))
            receipts = [await client.publish_nowait("log", record, timeout=60) for record in records]
            for receipt in receipts:
                await receipt

            async def measure(where: Any) -> tuple[int, float, int]:
                query = client.history("log", where=where)
                start = time.perf_counter()
                number = sum([1 async for message in query if message.data["hundredth"]])
                return number, time.perf_counter() - start, query.bytes_received

            await measure(nearcast.field("n") < 0)
            there = await measure(nearcast.field("hundredth") == True)  # noqa: E712
            here = await measure(None)
    assert there[0] == here[0] == total // 100
    return [
        Figure("history, 1 % of 100,000: seconds", f"{there[1]:.2f} s", f"{here[1]:.2f} s", there[1] / here[1], "< 1"),
        Figure("history, 1 % of 100,000: bytes", f"{there[2]:,}", f"{here[2]:,}", there[2] / here[2], "< 0.02"),
    ]


async def memory() -> list[Figure]:
    """A worker with ten topics whose spools hold 10,000 messages of 256 bytes."""
    topics, spool, size = 10, 10_000, 256
    async with city(("here",), (TopicSpec("echo.*", ("here",)),), spool) as sites:
        async with nearcast.connect(sites["here"].spec.url) as client:
            for _ in range(spool + 600):
                for topic in range(topics):
                    await client.publish(f"echo.{topic}", b"x" * size)
                await asyncio.sleep(0.002)
            worker = sites["here"].workers["worker-0"]
            while (await sites["here"].worker_stats())[0].processed < topics * (spool + 600):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            assert worker.pid is not None
            root = psutil.Process(worker.pid)
            proportional = sum(p.memory_full_info().pss for p in [root, *root.children(recursive=True)])
    payload = topics * spool * size
    what = "worker with 10 topics of spool 10,000 × 256 B: memory (both processes, shared pages once)"
    return [
        Figure(
            what, f"{proportional / 1e6:.1f} MB", f"{payload / 1e6:.1f} MB of payload", proportional / payload, "< 3"
        )
    ]


PARTS: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    "throughput": throughput,
    "latency": latency,
    "processor": processor,
    "marks": marks,
    "quorum": quorum,
    "history": history,
    "memory": memory,
    "repair": partial(repair, city),
    "catch_up": partial(catch_up, city),
    "lost_site": lost_site,
}


def main(wanted: list[str]) -> None:
    """Run the parts named on the command line, or all of them."""
    for part in wanted or PARTS:
        figures: Any = uvloop.run(PARTS[part]())  # type: ignore[arg-type]
        print_table(part, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
