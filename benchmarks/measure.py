"""What every benchmark shares: timing, peak memory, and a Markdown table of figures with their baselines."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping
    from multiprocessing.connection import Connection

T = TypeVar("T")
REPEAT = 5


@dataclass(frozen=True)
class Figure:
    """One line of a benchmark's table."""

    what: str
    value: str
    baseline: str = ""
    ratio: float | None = None
    target: str = ""


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """The result of a call and the seconds it took."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def timed_cpu(call: Callable[[], T]) -> tuple[T, float, float]:
    """The result, the seconds it took, and those of the processor: only these compare on a busy machine."""
    before = time.process_time()
    result, seconds = timed(call)
    return result, seconds, time.process_time() - before


def median_seconds(call: Callable[[], object], repeat: int = 5) -> float:
    """The median time of several calls."""
    return statistics.median(timed(call)[1] for _ in range(repeat))


def in_fresh_process(call: Callable[..., T], *args: Any) -> tuple[T, float, float]:
    """Result, seconds and peak memory in MB of a call made in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(sender, call, args))
    process.start()
    sender.close()
    result, seconds, megabytes = receiver.recv()
    process.join()
    return result, seconds, megabytes


def _measured(sender: Connection, call: Callable[..., object], args: tuple[Any, ...]) -> None:
    result, seconds = timed(lambda: call(*args))
    sender.send((result, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


async def interleaved(
    runs: Mapping[str, Callable[[], Awaitable[float]]], repeat: int = REPEAT
) -> dict[str, list[float]]:
    """Run each in turn, again and again, so that a busy moment of the machine does not hit one alone."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            found[name].append(await run())
    return found


def ratio(found: dict[str, list[float]], name: str, baseline: str) -> float:
    """The median of the ratios within each repetition."""
    return statistics.median(a / b for a, b in zip(found[name], found[baseline], strict=True))


def rate(values: list[float]) -> str:
    """The median of some rates."""
    return f"{statistics.median(values):,.0f}/s"


def print_table(title: str, figures: Iterable[Figure]) -> None:
    """Print figures as they come, so that a long run shows where it is."""
    print(f"\n### {title}\n\n| what | measured | baseline | ratio | target |\n|---|---|---|---|---|", flush=True)
    for f in figures:
        ratio = "" if f.ratio is None else f"{f.ratio:.2f}"
        print(f"| {f.what} | {f.value} | {f.baseline} | {ratio} | {f.target} |", flush=True)
