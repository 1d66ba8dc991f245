"""Speed of the balancing planners, maximum load against the lower bound, and moves."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.measure import Figure, in_fresh_process, timed_cpu

from nearcast.placement import balance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Instance = tuple[balance.BalanceProblem, NDArray[np.int64]]


def figures() -> Iterator[Figure]:
    """The paper's simulated size, growth by doubling, then a hundred times the paper's size."""
    yield from _paper_size()
    yield from _growth()
    yield from _large()


def _instance(subscribers: int, subscriptions: int = 1000, sites: int = 10) -> Instance:
    """Section 6.2.1: 10 to 30 subscriptions each, normal rates, and a skewed (NR-like) current assignment."""
    rng = np.random.default_rng(0)
    who = np.repeat(np.arange(subscribers), rng.integers(10, 31, size=subscribers))
    pairs = np.unique(who * subscriptions + rng.integers(subscriptions, size=len(who)))
    rates = np.maximum(rng.normal(10, 3, size=subscriptions), 0.1)
    problem = balance.from_pairs(
        pairs // subscriptions, pairs % subscriptions, rates, subscribers=subscribers, sites=sites
    )
    return problem, rng.choice(sites, size=subscribers, p=rng.dirichlet(np.full(sites, 2.0)))


def _paper_size() -> Iterator[Figure]:
    problem, current = _instance(10_000)
    seconds = statistics.median(timed_cpu(lambda: balance.gsh(problem, current))[2] for _ in range(3))
    size = f"10,000 subscribers, {problem.subscriptions.nnz:,} frontend subscriptions"
    literal = timed_cpu(lambda: _literal_gsh(problem))[2]
    yield Figure(f"gsh, {size}", f"{seconds:.2f} s CPU", f"literal: {literal:.1f} s", literal / seconds, "under 2 s")
    planners = {
        "ldm": balance.ldm,
        "sdm": balance.sdm,
        "grouped": balance.grouped,
        "gsh": balance.gsh,
        "refined": balance.refined,
        "built for sharing, then ldm": _built_for_sharing,
    }
    cases = {"1,000 backend": (problem, current), "100 backend": _instance(10_000, 100)}
    for case, (each, now) in cases.items():
        bound = balance.lower_bound(each)
        start = balance.loads(each, now).max() / bound
        yield Figure(f"{case}: maximum load over lower bound before", f"{start:.3f}")
        for name, plan in planners.items():
            result, _, took = timed_cpu(lambda plan=plan, each=each, now=now: plan(each, now))  # type: ignore[misc]
            value = f"{result.max_load / bound:.4f}, {result.moves} moves, {took:.2f} s CPU"
            target = "within 1.01" if name in ("gsh", "refined") else ""
            yield Figure(f"{case}: {name}", value, ratio=result.max_load / bound, target=target)


def _built_for_sharing(problem: balance.BalanceProblem, current: NDArray[np.int64]) -> balance.BalancePlan:
    """What sharing could save at most, as far as we found: site after site does without subscriptions.

    A site drops, cheapest first, the subscriptions whose subscribers it can leave to the sites after it.
    """
    subscriptions = problem.subscriptions.tocsc()
    assignment = np.full(problem.subscribers, problem.sites - 1)
    left = np.ones(problem.subscribers, dtype=bool)
    for site in range(problem.sites - 1):
        mine, dropped = left.copy(), np.zeros(len(problem.rates), dtype=bool)
        share = problem.outgoing[left].sum() / (problem.sites - site)
        while True:
            sent = subscriptions.T @ (problem.outgoing * mine)
            k = int(np.where(dropped, np.inf, sent / problem.rates).argmin())
            if problem.outgoing[mine].sum() - sent[k] < share:
                break
            dropped[k] = True
            mine[subscriptions.indices[subscriptions.indptr[k] : subscriptions.indptr[k + 1]]] = False
        assignment[mine] = site
        left &= ~mine
    return balance.report(problem, current, balance.ldm(problem, assignment).assignment)


def _literal_gsh(problem: balance.BalanceProblem) -> list[int]:
    """The shuffle with sets and dictionaries, as one would write it first."""
    rates, outgoing = problem.rates.tolist(), problem.outgoing.tolist()
    held: list[set[int]] = [set() for _ in range(problem.sites)]
    load = [0.0] * problem.sites
    assignment = [0] * problem.subscribers
    indptr, indices = problem.subscriptions.indptr.tolist(), problem.subscriptions.indices.tolist()
    for subscriber in sorted(range(problem.subscribers), key=lambda i: -outgoing[i]):
        site = load.index(min(load))
        wanted = set(indices[indptr[subscriber] : indptr[subscriber + 1]])
        load[site] += outgoing[subscriber] + sum(rates[k] for k in wanted - held[site])
        held[site] |= wanted
        assignment[subscriber] = site
    return assignment


def _growth() -> Iterator[Figure]:
    for name, plan in {"gsh": balance.gsh, "ldm": balance.ldm, "refined": balance.refined}.items():
        before: float | None = None
        for subscribers in (10_000, 20_000, 40_000, 80_000):
            problem, current = _instance(subscribers)
            _, seconds, cpu = timed_cpu(lambda p=problem, c=current, plan=plan: plan(p, c))  # type: ignore[misc]
            baseline = f"{before:.2f} s CPU at half the size" if before else ""
            ratio = cpu / before if before else None
            measured = f"{seconds:.2f} s, {cpu:.2f} s CPU"
            yield Figure(f"{name}, {subscribers:,} subscribers", measured, baseline, ratio)
            before = cpu


def _large() -> Iterator[Figure]:
    for name in ("gsh", "refined"):
        (size, took, quality), _, megabytes = in_fresh_process(_run_large, name)
        what = f"{name}, 1,000,000 subscribers, {size:,} frontend subscriptions"
        yield Figure(what, f"{took}, {megabytes:,.0f} MB", quality, target="under 120 s and 4 GB")


def _run_large(name: str) -> tuple[int, str, str]:
    problem, current = _instance(1_000_000)
    result, seconds, cpu = timed_cpu(lambda: getattr(balance, name)(problem, current))
    quality = f"{result.max_load / balance.lower_bound(problem):.4f} of the bound, {result.moves:,} moves"
    return int(problem.subscriptions.nnz), f"{seconds:.1f} s, {cpu:.1f} s CPU", quality
