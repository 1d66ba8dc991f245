"""What marks cost the processor of a durable topic: against the same topic without them, and against a plain topic."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from benchmarks.measure import Figure, interleaved, rate, ratio

import nats
from nearcast.site.ports import free_ports

STALLED_SECONDS = 60.0
# The agent reads what was processed up to half a second later: without a pause, and in runs as short as that, the next
# run pays for it.
PAUSE = 1.0
PROCESSORS = """
from nearcast import processor
@processor("echo.*", spool=1000, timeout=30)
def echo(message, spool):
    return message.payload
"""
SITE = """
processors = ["bench_processors"]
[[site]]
name = "here"
port = {port}
[site.store]
directory = "store"
[[topic]]
name = "echo.durable"
managed_by = ["here"]
replicas = ["here"]
[[topic]]
name = "echo.plain"
managed_by = ["here"]
"""
# What each process of a site reads when it starts, and what more it reads at the site without marks. All else of a
# durable topic stays there: its lease, the check for duplicates, the order of each source, its store.
BOTH = """
from nearcast.site.agent.catch_up import CatchUp
from nearcast.site.worker.mark_log import MarkLog
from nearcast.site.worker.processing_record import SourceRecord
"""
WITHOUT_MARKS = """
class Nothing:
    add = int  # called for each publication, and forgets it

async def start(self):
    pass

def know(self, key, known=SourceRecord.__init__):
    known(self, key)
    self.in_flight = Nothing

SourceRecord.__init__ = know
MarkLog.note_number = lambda self, topic, source, number: None
CatchUp.start = start
"""


@contextlib.contextmanager
def site_process(*, with_marks: bool) -> Iterator[tuple[str, psutil.Process]]:
    """A site in processes of its own, as `nearcast site run` starts it; its address and its worker."""
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as folder:
        base, port = Path(folder), free_ports(10)
        (base / "store").mkdir()
        (base / "bench_processors.py").write_text(PROCESSORS)
        (base / "nearcast.toml").write_text(SITE.format(port=port))
        (base / "start").mkdir()
        (base / "start" / "sitecustomize.py").write_text(BOTH if with_marks else BOTH + WITHOUT_MARKS)
        environment = os.environ | {"PYTHONPATH": str(base / "start")}
        command = [sys.executable, "-c", "from nearcast.cli import main; main()", "site", "run"]
        command += ["--config", str(base / "nearcast.toml"), "--name", "here"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        try:
            while line := process.stdout.readline():
                if line.startswith(b"Ready."):
                    break
            children = psutil.Process(process.pid).children()
            (worker,) = (one for one in children if "nearcast.site.worker" in one.cmdline())
            yield f"nats://127.0.0.1:{port}", worker
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


async def numbered_echoes(url: str, topic: str, numbers: Iterator[int], count: int, pause: float = 0.0) -> list[float]:
    """Publish with ids of a client, at most 500 under way; seconds there and back of each, then of all.

    What is lost or comes twice (a worker that is too slow for its site is replaced) would spoil the figures.
    """
    out, back = await nats.connect(url), await nats.connect(url)
    took: dict[str, float] = {}

    async def note(msg: Any) -> None:
        origin = msg.headers["Nats-Msg-Id"]
        if origin in took:
            raise RuntimeError(f"{origin} came twice")
        took[origin] = time.perf_counter() - float(msg.data.rstrip(b"x"))

    async def fewer_under_way(sent: int, most: int) -> None:
        came, since = len(took), time.perf_counter()
        while sent - len(took) > most:
            await asyncio.sleep(0.001)
            if len(took) > came:
                came, since = len(took), time.perf_counter()
            elif time.perf_counter() - since > STALLED_SECONDS:
                raise TimeoutError(f"{sent - len(took)} of {sent} messages of {topic} did not come back")

    await back.subscribe(f"ntf.{topic}", cb=note)
    await back.flush()
    start = time.perf_counter()
    for n in range(count):
        if pause:
            await asyncio.sleep(max(0.0, start + n * pause - time.perf_counter()))
        await fewer_under_way(n, 499)
        headers = {"Nats-Msg-Id": f"bench~00000:here:{time.time_ns() // 1000}:{next(numbers)}"}
        await out.publish(f"pub.{topic}", b"%.9f" % time.perf_counter() + b"x" * 100, headers=headers)
    await fewer_under_way(count, 0)
    seconds = time.perf_counter() - start
    await out.close()
    await back.close()
    return [*took.values(), seconds]


def processor_seconds(process: psutil.Process) -> float:
    """Of all threads. `cpu_times` counts hundredths of a second, a tenth of what is measured here."""
    tasks = Path(f"/proc/{process.pid}/task")
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


class Echoing:
    """A topic at a site, and its worker."""

    def __init__(self, url: str, worker: psutil.Process, topic: str) -> None:
        self._url, self._worker, self._topic = url, worker, topic
        self._numbers = itertools.count(1)

    async def throughput(self) -> float:
        """Messages a second."""
        await asyncio.sleep(PAUSE)
        return 40_000 / (await numbered_echoes(self._url, self._topic, self._numbers, 40_000))[-1]

    async def worker_cpu(self) -> float:
        """Seconds of the worker's process for a message: what limits its throughput, however busy the machine."""
        await asyncio.sleep(PAUSE)
        before = processor_seconds(self._worker)
        await numbered_echoes(self._url, self._topic, self._numbers, 20_000)
        return (processor_seconds(self._worker) - before) / 20_000

    async def p50(self) -> float:
        """Seconds there and back at 1,000 messages a second."""
        await asyncio.sleep(PAUSE)
        return statistics.median((await numbered_echoes(self._url, self._topic, self._numbers, 2_000, 0.001))[:-1])


async def marks() -> list[Figure]:
    """A durable topic's processor with marks and catch-up, against two that have none."""
    with (
        site_process(with_marks=True) as (url, worker),
        site_process(with_marks=False) as (url_without, worker_without),
    ):
        connection = await nats.connect(url)
        js = connection.jsm(prefix="$JS.here.API")
        await js.add_stream(name="plain", subjects=["pub.echo.plain", "ntf.echo.plain"], allow_direct=True)
        await connection.close()
        topics = {
            "marks": Echoing(url, worker, "echo.durable"),
            "the same topic without marks": Echoing(url_without, worker_without, "echo.durable"),
            "a plain topic that is stored": Echoing(url, worker, "echo.plain"),
        }
        figures = []
        parts = (
            ("throughput", Echoing.throughput, 5, "≥ 0.95"),
            ("CPU of the worker", Echoing.worker_cpu, 7, "≤ 1.05"),
            ("p50 at 1,000 msg/s", Echoing.p50, 5, "≤ 1.05"),
        )
        for what, run, repeat, target in parts:
            for topic in topics.values():
                await run(topic)
            found = await interleaved({name: partial(run, topic) for name, topic in topics.items()}, repeat)
            texts = {
                name: rate(values) if run is Echoing.throughput else f"{1e3 * statistics.median(values):.4f} ms"
                for name, values in found.items()
            }
            for baseline in list(topics)[1:]:
                share = ratio(found, "marks", baseline)
                aim = target if baseline == "the same topic without marks" else ""
                label = f"durable processor with marks, {what}, over {baseline}"
                figures.append(Figure(label, texts["marks"], texts[baseline], share, aim))
    return figures
