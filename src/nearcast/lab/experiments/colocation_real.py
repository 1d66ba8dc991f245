"""Co-location (Khare et al.), Fig. 1 and Table I on real workers: a broker, a worker process and clients here.

The processor burns the processing time, so that load is known. Runs are shorter than the paper's two minutes, and the
machine sends and receives as well; the simulated worker stands beside each run.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.lab.experiments.colocation_plans import learned
from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.lab.experiments.figure import plain_axes, style
from nearcast.lab.profiling.worker_profile import ProfileRun, draw, measure, one_site
from nearcast.placement.colocation.worker_simulation import SimulatedWorker, p90_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from nearcast.lab.experiments.experiment import Point, Row, Task
    from nearcast.lab.experiments.results import Results

__all__ = ["EXPERIMENTS"]

SECONDS, BOUND_MS = 10.0, 1000.0
K, PROCESSING_RANGE = 6, (10.0, 40.0)
SIMULATIONS = 9


def _real(run: ProfileRun, seconds: float, subscribers: int = 1) -> list[float]:
    async def once() -> list[float]:
        async with one_site(len(run.rates)) as url:
            return await measure(run, url, seconds, subscribers)

    return asyncio.run(once())


def _simulated(run: ProfileRun, seconds: float) -> list[float]:
    """The median of some runs of the simulated worker."""
    rng = np.random.default_rng(run.number)
    rates, processing = np.array(run.rates), np.array(run.processing_ms)
    runs = [p90_ms(rates, processing, SimulatedWorker(seconds=seconds), rng) for _ in range(SIMULATIONS)]
    return [float(value) for value in np.median(runs, axis=0)]


def measure_real_worker(task: Task) -> Iterator[Row]:
    """Fig. 1: p90 of the first topic of a run, real and simulated."""
    panel, processing, load, others = str(task["panel"]), task.number("p"), task.number("load"), task.number("others")
    subscribers = int(task.number("subscribers"))
    rates = (load / processing * 1000, *(10.0,) * int(others))
    run = ProfileRun(task.seed, rates, (processing, *(15.0,) * int(others)))  # a load of 0.15 each
    name = {"b": f"{subscribers} subscribers", "d": f"{others:g} others"}.get(panel, f"{processing:g} ms")
    yield {"method": f"real, {name}", "rate": rates[0], "p90_ms": _real(run, SECONDS, subscribers)[0]}
    yield {"method": f"simulated, {name}", "rate": rates[0], "p90_ms": _simulated(run, SECONDS)[0]}


def _real_points(quick: bool) -> list[Point]:
    """a: subscribers. b: others beside a topic with many subscribers. c: rate, alone. d: rate, beside others."""
    loads = (0.3, 0.6, 0.9) if quick else (0.2, 0.4, 0.6, 0.8, 0.9, 1.1)
    alone = [(p, load) for p in ((20.0,) if quick else (10.0, 20.0, 40.0)) for load in loads]
    counts, crowd = ((1, 50), 50) if quick else ((1, 50, 100, 200), 200)
    points = [("a", p, 0.1, 0, n) for p in ((20.0,) if quick else (10.0, 20.0, 40.0)) for n in counts]
    points += [("b", 20.0, 0.1, others, crowd) for others in ((0, 4) if quick else (0, 1, 2, 3, 4, 5))]
    points += [("c", p, load, 0, 1) for p, load in alone]
    points += [("d", 20.0, load, others, 1) for others in (0, 3) for load in loads if load + 0.15 * others < 1.2]
    return [
        {"panel": panel, "p": p, "load": load, "others": float(others), "subscribers": float(subscribers)}
        for panel, p, load, others, subscribers in points
    ]


def _real_claims(results: Results) -> list[Claim]:
    def real(**equal: str | float) -> Results:
        return results.where(**equal).select(lambda row: str(row["method"]).startswith("real"))

    few, many = (real(panel="a", subscribers=n) for n in (1.0, results.most("subscribers", panel="a")))
    without, beside = (real(panel="b", others=n) for n in (0.0, results.most("others", panel="b")))
    alone = real(panel="c", p=20.0)
    loads = sorted(float(x) for x in alone.values("load"))
    low, high = (alone.mean("p90_ms", load=load) for load in (loads[0], loads[-1]))
    simulated = results.where(panel="c", p=20.0).select(lambda row: str(row["method"]).startswith("simulated"))
    ratio = [alone.mean("p90_ms", load=x).mean / simulated.mean("p90_ms", load=x).mean for x in loads[:-1]]
    shared = [real(panel="d", others=n).mean("p90_ms", load=loads[1]) for n in (0.0, 3.0)]
    busy = f"Runs of {SECONDS:g} s instead of two minutes, on a machine that sends, receives and does other work."
    return [
        Claim(
            "More subscribers of a topic raise its p90 only a little (one worker, alone).",
            "Fig. 1a: 240 subscribers without a significant penalty",
            f"{few.mean('p90_ms').text(0, ' ms')} with 1, {many.mean('p90_ms').text(0, ' ms')} with "
            f"{many.most('subscribers'):.0f} subscribers (a little: up to a quarter of a second)",
            verdict(many.mean("p90_ms").mean < BOUND_MS / 4),
            busy,
        ),
        Claim(
            "A topic with many subscribers stays below a second beside other topics.",
            "Fig. 1b: not significantly impacted",
            f"{without.mean('p90_ms').text(0, ' ms')} alone, {beside.mean('p90_ms').text(0, ' ms')} beside "
            f"{beside.most('others'):.0f} others",
            verdict(beside.mean("p90_ms").mean < BOUND_MS),
            busy,
        ),
        Claim(
            "p90 of a real worker climbs with the load as the simulated one's.",
            "Fig. 1c",
            f"20 ms: {low.text(0, ' ms')} at a load of {loads[0]:g}, {high.text(0, ' ms')} at {loads[-1]:g}; "
            f"real over simulated {min(ratio):.2f} to {max(ratio):.2f} below that (as: up to twice)",
            verdict(high.mean > 1.5 * low.mean, max(ratio) < 2),
            busy,
        ),
        Claim(
            "Other topics on the worker raise its p90.",
            "Fig. 1d",
            f"load {loads[1]:g}: {shared[0].text(0, ' ms')} alone, {shared[1].text(0, ' ms')} beside 3 others",
            verdict(shared[1].mean > shared[0].mean),
        ),
    ]


def measure_real_accuracy(task: Task) -> Iterator[Row]:
    """Table I: what a model of the simulated worker predicts for a run of real topics, and what is measured."""
    size = int(task.number("k"))
    run = draw(K * task.seed + size - 1, K, 0, PROCESSING_RANGE)
    sets = np.array([[(p, r, p * r / 1000) for p, r in zip(run.processing_ms, run.rates, strict=True)]])
    predicted = learned(900 if task.quick else 6000).mean().predict_ms(sets)[0]
    for number, (real, expected) in enumerate(zip(_real(run, SECONDS), predicted.tolist(), strict=True)):
        if np.isnan(real):  # no message of a slow topic in so short a run
            continue
        yield {"method": f"k = {size}", "topic": float(number), "p90_ms": real, "predicted_ms": float(expected)}


def _accuracy_claims(results: Results) -> list[Claim]:
    from sklearn.metrics import r2_score

    sizes = [float(k) for k in results.values("k")]
    error = {
        k: np.log(part.numbers("p90_ms") / part.numbers("predicted_ms")) for k in sizes for part in [results.where(k=k)]
    }
    whole = r2_score(np.log(results.numbers("p90_ms")), np.log(results.numbers("predicted_ms")))
    return [
        Claim(
            "The model predicts p90 of topics that share a worker (real workers).",
            "R² .951 to .984 by k, on its testbed",
            f"R² of log p90 over {len(results.rows)} topics: {whole:.2f}; real over predicted (median) "
            + ", ".join(f"k = {k:g}: {np.exp(np.median(error[k])):.2f}" for k in sizes),
            verdict(whole > 0.9, whole > 0.5),
            "The model is learned from the simulated worker, not from real ones, and runs last "
            f"{SECONDS:g} s: near saturation p90 differs from run to run, and the machine does other work.",
        )
    ]


def _draw_accuracy(results: Results, figure: Figure) -> None:
    axes: Any = figure.subplots()
    for number, method in enumerate(results.values("method")):
        part = results.where(method=method)
        look = {**style(number), "linestyle": "none"}
        axes.plot(part.numbers("predicted_ms"), part.numbers("p90_ms"), label=str(method), **look)
    ends = [min(results.numbers(name).min() for name in ("p90_ms", "predicted_ms")), results.most("p90_ms")]
    axes.plot(ends, ends, color="0.25", linewidth=0.9, linestyle=(0, (6, 3)), label="as predicted")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("predicted p90 (ms)", fontsize=9)
    axes.set_ylabel("measured p90 (ms)", fontsize=9)
    axes.legend(frameon=False, fontsize=8)
    plain_axes(axes)


EXPERIMENTS = (
    Experiment(
        name="colocation-real-worker",
        paper="001",
        figure="Fig. 1",
        title="p90 of a topic on a real worker",
        about="A broker, a worker process and clients on this machine; others have a load of 0.15 each; a: a load of "
        "0.1, subscribers as clients of their own; b: the same beside others.",
        points=_real_points,
        seeds=(1, 3),
        measure=measure_real_worker,
        claims=_real_claims,
        panels=[
            Panel("subscribers", "p90_ms", "subscribers of the topic", "p90 (ms)", title="a", where={"panel": "a"}),
            Panel("others", "p90_ms", "other topics of the worker", "p90 (ms)", title="b", where={"panel": "b"}),
            Panel("rate", "p90_ms", "messages/s, alone", "p90 (ms)", title="c", where={"panel": "c"}, log_y=True),
            Panel("rate", "p90_ms", "messages/s, 20 ms", "p90 (ms)", title="d", where={"panel": "d"}, log_y=True),
        ],
        columns=2,
        parallel=False,
    ),
    Experiment(
        name="colocation-real-accuracy",
        paper="001",
        figure="Fig. 2, Table I",
        title="Predicted and measured p90 of topics on real workers",
        about="Topics of 10 to 40 ms that share a load of up to 0.9, 1 to 6 on a worker; the model is learned from "
        "simulated runs.",
        points=lambda quick: [{"k": float(k)} for k in ((1, 2, 4) if quick else range(1, K + 1))],
        seeds=(2, 10),
        measure=measure_real_accuracy,
        claims=_accuracy_claims,
        draw=_draw_accuracy,
        size=(5.5, 4.0),
        parallel=False,
    ),
)
