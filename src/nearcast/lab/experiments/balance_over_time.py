"""Load balancing (Nguyen et al.), Fig. 13 and 14: half an hour in which rates rise and fall, minute by minute."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.lab.experiments.results import estimate
from nearcast.placement import balance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearcast.lab.experiments.experiment import Point, Row, Task
    from nearcast.lab.experiments.results import Estimate, Results
    from nearcast.placement.arrays import Floats, Ints

    Policy = Callable[[balance.BalanceProblem, Ints], balance.BalancePlan]

__all__ = ["EXPERIMENTS", "BalanceScenario", "scenario", "simulate"]

MINUTES, SUBSCRIBING, SETTLED = 30, 8, 12  # subscriptions are made in the first 8 minutes; then rates only fluctuate
SITES, CHANNELS, PER_CHANNEL = 10, 10, 100
PERIODS = np.array([5, 5, 10, 10, 20, 20, 30, 30, 60, 60])  # seconds
ALPHA = 0.15  # of Fig. 13
GAMMA = 0.5  # above this variation the shuffle comes into play
MEAN_LOAD = 1000.0  # MB/s of a site when all have subscribed and no rate is raised: our scale, the paper names none


class BalanceScenario:
    """Who is where, who asks for what from which minute on, and the rate of every subscription in every minute."""

    def __init__(self, subscribers: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        subscriptions = CHANNELS * PER_CHANNEL
        who = np.repeat(np.arange(subscribers), rng.integers(10, 31, size=subscribers))
        pairs = np.unique(who * subscriptions + rng.integers(subscriptions, size=len(who)))
        self.subscriber, self.subscription = pairs // subscriptions, pairs % subscriptions
        self.since = rng.integers(0, SUBSCRIBING, size=len(pairs))
        # The nearest site of people who live unevenly: one site has more than 2,000 of 10,000, others below 500.
        share = np.sort(rng.dirichlet(np.full(SITES, 2.0)))
        share[-1] = max(share[-1], 0.22)
        self.nearest = rng.choice(SITES, size=subscribers, p=share / share.sum())
        self.rates = self._rates(rng)
        everybody = balance.from_pairs(
            self.subscriber, self.subscription, self.rates[0], subscribers=subscribers, sites=SITES
        )
        self.rates *= MEAN_LOAD / balance.loads(everybody, self.nearest).mean()
        self.subscribers = subscribers

    @staticmethod
    def _rates(rng: np.random.Generator) -> Floats:
        """Each minute a quarter is scheduled to double within 3 minutes, and to fall back 4 to 6 minutes later."""
        base = np.maximum(rng.normal(10, 3, CHANNELS * PER_CHANNEL), 0.1) / np.repeat(PERIODS, PER_CHANNEL)
        raised = np.zeros((MINUTES, len(base)), dtype=bool)
        for minute in range(1, MINUTES):
            chosen = np.flatnonzero(rng.random(len(base)) < 0.25)
            begin, lasting = minute + rng.integers(0, 3, len(chosen)), rng.integers(4, 7, len(chosen))
            for k, first, length in zip(chosen, begin, lasting, strict=True):
                raised[first : first + length, k] = True
        return np.asarray(np.where(raised, 2.0, 1.0) * base)

    def at(self, minute: int) -> balance.BalanceProblem:
        active = self.since <= minute
        return balance.from_pairs(
            self.subscriber[active],
            self.subscription[active],
            self.rates[minute],
            subscribers=self.subscribers,
            sites=SITES,
        )


def scenario(task: Task) -> BalanceScenario:
    """The paper's size, or a tenth of it."""
    return BalanceScenario(1_000 if task.quick else 10_000, task.seed)


def simulate(given: BalanceScenario, policy: Policy) -> Iterator[tuple[balance.BalancePlan, int]]:
    """Each minute the policy sees the present load; its plan and the moves so far."""
    at, moves = given.nearest, 0
    for minute in range(MINUTES):
        plan = policy(given.at(minute), at)
        moves += plan.moves
        at = plan.assignment
        yield plan, moves


def _above(variation: float, beta: float, plan: Policy) -> Policy:
    """Plan when the loads vary by more than this and their mean is above β; else all stay where they are."""

    def policy(problem: balance.BalanceProblem, at: Ints) -> balance.BalancePlan:
        load = balance.loads(problem, at)
        if balance.cov(load) > variation and load.mean() > beta:
            return plan(problem, at)
        return balance.report(problem, at, at)

    return policy


def measure_over_time(task: Task) -> Iterator[Row]:
    """Fig. 13: no balancing, LDM, SDM, GSH and ours, minute by minute."""
    given, alpha, beta = scenario(task), ALPHA, 300.0
    policies: dict[str, Policy] = {
        "none": lambda problem, at: balance.report(problem, at, at),
        "ldm": partial(balance.ldm, alpha=alpha, beta=beta),
        "sdm": partial(balance.sdm, alpha=alpha, beta=beta),
        "gsh": _above(GAMMA, beta, balance.gsh),
        "refined": _above(alpha, beta, balance.refined),
    }
    for method, policy in policies.items():
        for minute, (plan, moves) in enumerate(simulate(given, policy)):
            yield {
                "method": method,
                "minute": float(minute),
                "cov": balance.cov(plan.loads),
                "max_over_mean": plan.max_load / float(plan.loads.mean()),
                "moves": float(moves),
            }


def _minutes_until_level(results: Results) -> Estimate:
    """The last minute above α while subscriptions are made, and one; over seeds."""
    above = dict.fromkeys(results.values("seed"), -1.0)
    for row in results.rows:
        if float(row["minute"]) < SUBSCRIBING and float(row["cov"]) > ALPHA:
            above[row["seed"]] = max(above[row["seed"]], float(row["minute"]))
    return estimate(minute + 1 for minute in above.values())


def _over_time_claims(results: Results) -> list[Claim]:
    last, settled = float(MINUTES - 1), results.select(lambda row: float(row["minute"]) >= SETTLED)
    cov = {name: settled.mean("cov", method=name) for name in ("none", "ldm", "sdm", "gsh", "refined")}
    moves = {name: results.mean("moves", method=name, minute=last) for name in cov}
    at_first, at_last = (results.where(method="gsh", minute=minute) for minute in (float(SUBSCRIBING), last))
    more = at_last.numbers("moves") - at_first.numbers("moves")
    at_once = at_first.mean("cov")
    level = {name: _minutes_until_level(results.where(method=name)) for name in ("ldm", "gsh")}
    fewer = results.difference("moves", {"method": "refined"}, {"method": "gsh"}, minute=last)
    return [
        Claim(
            "LDM and GSH both mend the imbalance of the nearest placement.",
            "shown in Fig. 13",
            f"cov {cov['none'].text()} without, {cov['ldm'].text()} with LDM, {cov['gsh'].text()} with GSH",
            verdict(cov["ldm"].high < cov["none"].low, cov["gsh"].high < cov["none"].low),
        ),
        Claim(
            "GSH does so at once and needs no further migration; LDM takes longer.",
            "shown in Fig. 13",
            f"GSH: cov {at_once.text(3)} in minute {SUBSCRIBING}, {more.mean():.0f} moves after it; below α from "
            f"minute {level['gsh'].text(1)} on, LDM from {level['ldm'].text(1)}",
            verdict(at_once.high < ALPHA, bool((more == 0).all()), level["ldm"].low > level["gsh"].high),
            "Algorithm 1 makes all moves it needs in one go, so that LDM is below α in the first minute, too; what "
            "takes time is that subscriptions are still being made, and that the mean load must reach β first.",
        ),
        Claim(
            "SDM is similar to LDM.",
            "Fig. 6 and 10, on the testbed",
            f"cov {cov['ldm'].text(3)} and {cov['sdm'].text(3)} (similar: 0.03), "
            f"moves {moves['ldm'].text(0)} and {moves['sdm'].text(0)}",
            verdict(abs(cov["ldm"].mean - cov["sdm"].mean) < 0.03),
        ),
        Claim(
            "Ours: more level than LDM and SDM, with fewer moves than the shuffle.",
            "—",
            f"refined: cov {cov['refined'].text(3)}, {moves['refined'].text(0)} moves; "
            f"GSH: cov {cov['gsh'].text(3)}, {moves['gsh'].text(0)} moves",
            verdict(all(cov["refined"].high < cov[name].low for name in ("ldm", "sdm")), fewer.high < 0),
            "Like the shuffle it acts in the first minutes, and again while subscriptions are still being made; how "
            "many moves that takes differs from seed to seed.",
        ),
    ]


def _threshold_points(quick: bool) -> list[Point]:
    alphas = (0.05, 0.15, 0.3) if quick else (0.05, 0.1, 0.15, 0.2, 0.3)
    return [{"alpha": alpha, "beta": beta} for beta in (300.0, 1100.0) for alpha in alphas]


def measure_thresholds(task: Task) -> Iterator[Row]:
    """Fig. 14: LDM's variation and moves under α and β, beside GSH."""
    given, alpha, beta = scenario(task), task.number("alpha"), task.number("beta")
    policies: dict[str, Policy] = {
        "ldm": partial(balance.ldm, alpha=alpha, beta=beta),
        "gsh": _above(GAMMA, beta, balance.gsh),
    }
    for method, policy in policies.items():
        steps = list(simulate(given, policy))
        yield {
            "method": method,
            "cov": float(np.mean([balance.cov(plan.loads) for plan, _ in steps[SETTLED:]])),
            "moves": float(steps[-1][1]),
        }


def _threshold_claims(results: Results) -> list[Claim]:
    alphas = sorted(float(a) for a in results.values("alpha"))
    low = results.where(method="ldm", beta=300.0)
    moves = [low.mean("moves", alpha=alpha) for alpha in alphas]
    ends = {"alpha": alphas[0]}, {"alpha": alphas[-1]}
    fewer, level = low.ratio("moves", *ends), low.ratio("cov", *ends)
    cov = [low.mean("cov", alpha=alpha) for alpha in alphas]
    least = results.where(beta=300.0, alpha=alphas[0])
    acted = {row["seed"] for row in least.where(method="gsh").rows if float(row["moves"]) > 0}
    both = least.select(lambda row: row["seed"] in acted)
    shuffled = both.mean("cov", method="gsh")
    behind = both.difference("cov", {"method": "ldm"}, {"method": "gsh"})
    return [
        Claim(
            "With small α and β LDM gets as level as GSH.",
            "α = 0.05, β = 300",
            f"cov {behind.text(3)} above GSH's {shuffled.text(3)} (as level: 0.02; near: α), in the {len(acted)} of "
            f"{len(least.values('seed'))} seeds in which the shuffle came into play",
            verdict(behind.high < 0.02, behind.high < alphas[0]),
            "LDM stops as soon as the variation is below α, which the shuffle goes far below.",
        ),
        Claim(
            "Smaller thresholds: more level, more migrations.",
            "shown in Fig. 14",
            f"from α = {alphas[-1]:g} to {alphas[0]:g}: cov {cov[-1].text(3)} → {cov[0].text(3)}, "
            f"moves {moves[-1].text(0)} → {moves[0].text(0)}",
            verdict(level.high < 1, fewer.low > 1),
        ),
    ]


_LABEL = {"cov": "cov of the sites' loads", "max_over_mean": "maximum load / mean", "moves": "migrations so far"}
EXPERIMENTS = (
    Experiment(
        name="balance-over-time",
        paper="004",
        figure="Fig. 13",
        title="Nearest placement, rates that rise and fall each minute",
        about="10 sites, 10,000 subscribers (quick: 1,000), 1,000 backend subscriptions of 10 channels with periods of "
        "5 to 60 s, 10 to 30 subscriptions each, made in the first 8 of 30 minutes; each minute a quarter of the rates "
        "is scheduled to double. α = 0.15, β = 300 MB/s, a settled mean load of 1,000 MB/s or more.",
        points=lambda quick: [{"alpha": 0.15}],
        seeds=(3, 10),
        measure=measure_over_time,
        claims=_over_time_claims,
        panels=[Panel("minute", name, "minute", label) for name, label in _LABEL.items()],
    ),
    Experiment(
        name="balance-thresholds",
        paper="004",
        figure="Fig. 14",
        title="What α and β do",
        about="As Fig. 13; cov is the mean from minute 12 on. β = 1,100 MB/s is near the mean load, so that balancing "
        "stops when rates fall.",
        points=_threshold_points,
        seeds=(6, 10),
        measure=measure_thresholds,
        claims=_threshold_claims,
        panels=[
            Panel("alpha", name, "α", label, title=f"β = {beta:g} MB/s", where={"beta": beta})
            for beta in (300.0, 1100.0)
            for name, label in (("cov", "cov after minute 12"), ("moves", "migrations in 30 minutes"))
        ],
        columns=2,
    ),
)
