"""Co-location (Khare et al.), Fig. 3 and 4: workers, time, p90 and what is late, against topics and against k'."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.placement import colocation
from nearcast.placement.colocation.training import Training, train
from nearcast.placement.colocation.worker_simulation import SimulatedWorker, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearcast.lab.experiments.experiment import Row, Task
    from nearcast.lab.experiments.results import Results

    Planner = Callable[[colocation.Feasibility], colocation.ColocationPlan]

__all__ = ["BOUND_MS", "EXPERIMENTS", "PROCESSING_MS", "K", "learned", "request"]

K, BOUND_MS, MARGIN = 6, 1000.0, 0.1
PROCESSING_MS = (10.0, 20.0, 30.0, 40.0)
QUICK_RUNS = 900  # to learn from; learning takes most of the time of the quick version


@cache
def learned(runs: int) -> colocation.LatencyModel:
    """A model of the simulated worker, the same in every task; learned once per process."""
    return train(simulate(runs, K, SimulatedWorker(), seed=0), Training())[0]


def request(model: colocation.LatencyModel, topics: int, seed: int) -> colocation.ColocationTopics:
    """Section VI: p one of four, r uniform up to r_max (with a margin of a half, so that all plan the same topics)."""
    rng = np.random.default_rng(seed)
    processing = rng.choice(PROCESSING_MS, topics)
    most = {p: min(colocation.max_rate(m, p, BOUND_MS, 0.5) for m in (model, model.mean())) for p in PROCESSING_MS}
    rate = np.array([rng.uniform(1, most[p]) for p in processing.tolist()])
    return colocation.ColocationTopics(rate, processing, np.full(topics, BOUND_MS))


def _row(method: str, topics: colocation.ColocationTopics, make_plan: Callable[[], colocation.ColocationPlan]) -> Row:
    started = time.process_time()
    plan = make_plan()
    seconds = time.process_time() - started
    checked = colocation.check_plan(plan, topics, SimulatedWorker(), seed=99)
    load = topics.rate * topics.processing_ms / 1000
    return {
        "method": method,
        "workers": float(plan.workers),
        "seconds": seconds,
        "utilisation": float(load.sum()) / plan.workers,
        "p90_ms": float(np.nanmean(checked.p90_ms)),
        "late_messages": checked.late_messages,
        "late_topics": checked.late_topics,
    }


def measure_topics(task: Task) -> Iterator[Row]:
    """Fig. 3: the paper's heuristics with the mean, as in the paper; ours with the tail and a checked margin."""
    model = learned(QUICK_RUNS if task.quick else 6000)
    topics = request(model, int(task.number("n")), task.seed)
    planners: dict[str, Planner] = {
        "ffd": lambda possible: colocation.ffd(possible, K),
        "lfs": lambda possible: colocation.lfs(possible, K),
        "hybrid": lambda possible: colocation.hybrid(possible, K, 3),
    }
    for method, planner in planners.items():
        yield _row(method, topics, partial(planner, colocation.feasibility(model.mean(), topics, MARGIN)))

    def ours() -> colocation.ColocationPlan:
        return colocation.with_checked_margin(
            model, topics, lambda possible: colocation.refined(possible, K), SimulatedWorker()
        ).plan

    yield _row("refined, checked", topics, ours)
    fewest = colocation.lower_bound(colocation.feasibility(model.mean(), topics, 0.0), K)
    yield {"method": "bound", "workers": float(fewest)}


def measure_seed_size(task: Task) -> Iterator[Row]:
    """Fig. 4: LFS_k' + FFD_k for 50 topics."""
    model, seed_size = learned(QUICK_RUNS if task.quick else 6000), int(task.number("k'"))
    topics = request(model, 50, task.seed)
    possible = colocation.feasibility(model.mean(), topics, MARGIN)
    yield _row("hybrid", topics, lambda: colocation.hybrid(possible, K, seed_size))


def _topics_claims(results: Results) -> list[Claim]:
    sizes = [float(n) for n in results.values("n")]
    paper, ours = ("ffd", "lfs", "hybrid"), "refined, checked"
    fewest = results.ratio("workers", {"method": "lfs"}, {"method": "ffd"})
    slow = results.ratio("seconds", {"method": "lfs"}, {"method": "ffd"}, n=sizes[-1])
    late = {name: results.mean("late_topics", method=name) for name in (*paper, ours)}
    messages = {name: results.mean("late_messages", method=name) for name in (*paper, ours)}
    worst, worst_messages = (
        max(results.most(metric, method=name) for name in paper) for metric in ("late_topics", "late_messages")
    )
    used = {name: results.where(method=name).numbers("workers") for name in paper}
    lfs_is_fewest = float((np.min(list(used.values()), axis=0) == used["lfs"]).mean())
    more = results.ratio("workers", {"method": ours}, {"method": "ffd"})
    fewer_late = results.difference("late_topics", {"method": ours}, {"method": "ffd"})
    return [
        Claim(
            "The heuristics use similar numbers of workers, LFS the fewest in most cases.",
            "Fig. 3a",
            f"LFS {fewest.percent()} against FFD (similar: 10 %); in {lfs_is_fewest:.0%} of requests none has fewer",
            verdict(abs(fewest.mean - 1) <= 0.1, lfs_is_fewest > 0.5),
            "Where load and not k limits a worker, sets of k light topics leave heavy ones alone.",
        ),
        Claim(
            "LFS takes far longer than FFD.",
            "prohibitive",
            f"{slow.text(0)} times at n = {sizes[-1]:g} (far longer: 10 times)",
            verdict(slow.low > 10),
            "Ours is pruned (docs/placement.md): the ratio is smaller, and no plan took long.",
        ),
        Claim(
            "Some topics and messages miss the bound of 1 s.",
            "up to 13 % of topics, 9 % of messages",
            f"topics: FFD {late['ffd'].text(1, ' %', 100)}, LFS {late['lfs'].text(1, ' %', 100)}, at most {worst:.0%}; "
            f"messages: FFD {messages['ffd'].text(1, ' %', 100)}, at most {worst_messages:.0%}",
            verdict(0 < worst <= 0.13, 0 < worst_messages <= 0.09),
            "The learned mean is exceeded by every second run near saturation.",
        ),
        Claim(
            "Ours: with the tail learned and the margin checked hardly a topic is late.",
            "—",
            f"{late[ours].text(2, ' %', 100)} of topics, {messages[ours].text(2, ' %', 100)} of messages, "
            f"{more.percent()} workers against FFD (hardly: 0.5 %)",
            verdict(late[ours].mean <= 0.005, fewer_late.high < 0),
            "Judged by other random runs than those that chose the margin.",
        ),
    ]


def _seed_size_claims(results: Results) -> list[Claim]:
    first, last = ({"k'": size} for size in (1.0, float(K)))
    workers, seconds, p90 = (results.ratio(name, last, first) for name in ("workers", "seconds", "p90_ms"))
    late = max(results.most("late_topics", **{"k'": float(k)}) for k in results.values("k'"))
    return [
        Claim(
            "A higher k' needs fewer workers.",
            "Fig. 4a",
            f"k' = 6 against 1: {workers.percent()}",
            verdict(workers.high < 1),
            "Draws with loads up to r_max are limited by load, not by k: there sets of k leave heavy topics alone.",
        ),
        Claim(
            "A higher k' takes more time.",
            "Fig. 4b",
            f"k' = 6 against 1: {seconds.text(1)} times",
            verdict(seconds.low > 1),
        ),
        Claim(
            "p90 rises with k', since plans are more compact.",
            "Fig. 4d",
            f"k' = 6 against 1: {p90.percent()}",
            verdict(p90.low > 1),
            "Plans are not more compact with a higher k' (first claim).",
        ),
        Claim(
            "Up to 12 % of topics are late.",
            "12 %",
            f"at most {late:.0%} in a request",
            verdict(late <= 0.12),
            "The learned mean is exceeded by every second run near saturation.",
        ),
    ]


def _panels(x: str, label: str) -> list[Panel]:
    return [
        Panel(x, "workers", label, "workers"),
        Panel(x, "seconds", label, "processor time (s)", log_y=True),
        Panel(x, "utilisation", label, "mean load of a worker"),
        Panel(x, "p90_ms", label, "mean p90 (ms)", limits={"1 s": BOUND_MS}),
        Panel(x, "late_messages", label, "share of messages late"),
        Panel(x, "late_topics", label, "share of topics late"),
    ]


_ABOUT = (
    "k = 6, p of 10, 20, 30 or 40 ms, r up to what a topic alone can have, bound 1 s, margin 0.1. The model is learned "
    "from simulated runs, plans are judged by three simulated runs of each worker."
)
EXPERIMENTS = (
    Experiment(
        name="colocation-topics",
        paper="001",
        figure="Fig. 3",
        title="Co-location heuristics against the number of topics",
        about=_ABOUT + " LFS_3 + FFD is `hybrid`; `bound` is the fewest workers any plan could have.",
        points=lambda quick: [{"n": float(n)} for n in ((10, 40) if quick else range(10, 80, 10))],
        seeds=(4, 10),
        measure=measure_topics,
        claims=_topics_claims,
        panels=_panels("n", "topics n"),
    ),
    Experiment(
        name="colocation-seed-size",
        paper="001",
        figure="Fig. 4",
        title="LFS_k' + FFD_k against k', 50 topics",
        about=_ABOUT,
        points=lambda quick: [{"k'": float(k)} for k in ((1, 3, 6) if quick else range(1, 7))],
        seeds=(8, 10),
        measure=measure_seed_size,
        claims=_seed_size_claims,
        panels=_panels("k'", "k'"),
    ),
)
