"""Load balancing (Nguyen et al.), Fig. 5 to 12 on live brokers: their own counters say how loaded they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from nearcast.lab.experiments.broker_testbed import WINDOW_S, BrokerTestbed, brokers, run_policy
from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.lab.experiments.experiment import Row, Task
    from nearcast.lab.experiments.results import Results

__all__ = ["EXPERIMENTS"]

POLICIES = ("none", "ldm", "sdm", "gsh")
PLACEMENTS = ("RND", "RR", "NR")


def measure_testbed(task: Task) -> Iterable[Row]:
    """One placement with every policy, one after the other, on the same brokers."""
    bed = BrokerTestbed(400, 840.0 if task.quick else 1800.0, task.seed)

    async def all_policies() -> list[Row]:
        async with brokers() as specs:
            at = bed.placed(str(task["placement"]))
            rows: list[Row] = []
            for policy in POLICIES:
                rows += await run_policy(bed, specs, at, policy, 120.0 if task.quick else 60.0)
            return rows

    return asyncio.run(all_policies())


def _claims(results: Results) -> list[Claim]:
    last = max(float(minute) for minute in results.values("minute"))
    settled = results.select(lambda row: float(row["minute"]) > last / 2)
    placements = [str(p) for p in results.values("placement")]

    def each(metric: str, digits: int, source: Results) -> Callable[[str], str]:
        def text(placement: str) -> str:
            part = source.where(placement=placement)
            return f"{placement}: " + ", ".join(f"{p} {part.mean(metric, method=p).text(digits)}" for p in POLICIES)

        return text

    def lower(metric: str, policy: str) -> list[bool]:
        found = [settled.where(placement=p) for p in placements]
        return [part.mean(metric, method=policy).high < part.mean(metric, method="none").low for part in found]

    moves = {p: results.mean("moves", placement=p, method="ldm", minute=last) for p in placements}
    late = results.where(placement="NR", method="gsh")
    after = late.mean("moves", minute=last).mean - late.mean("moves", minute=2 * WINDOW_S / 60).mean
    model = results.numbers("max_load") / results.numbers("computed_max")
    both = [settled.mean("cov", placement="NR", method=p) for p in ("ldm", "sdm")]
    return [
        Claim(
            "LDM and SDM lower the variation of the brokers' loads under every placement.",
            "Fig. 5 to 8, 10",
            "cov in the second half; " + "; ".join(map(each("cov", 2, settled), placements)),
            verdict(*lower("cov", "ldm"), *lower("cov", "sdm")),
        ),
        Claim(
            "The maximum load falls.",
            "Fig. 6, 10",
            "kB/s in the second half; " + "; ".join(map(each("max_load", 0, settled), placements)),
            verdict(*lower("max_load", "ldm"), *lower("max_load", "sdm")),
        ),
        Claim(
            "The nearest placement needs far more migrations than the others.",
            "Fig. 12",
            "LDM: " + ", ".join(f"{p} {count.text(0)}" for p, count in moves.items()) + " (far more: twice)",
            verdict(all(moves["NR"].low > 2 * count.high for p, count in moves.items() if p != "NR")),
        ),
        Claim(
            "An early shuffle makes later migrations needless.",
            "Fig. 9, 11",
            f"NR with GSH: {late.mean('moves', minute=last).text(0)} moves, {after:.0f} of them after the first "
            "(needless: up to a tenth)",
            verdict(after <= 0.1 * late.mean("moves", minute=last).mean),
        ),
        Claim(
            "The load of a broker is what Eq. 5 says: each shared subscription once in, and out to each subscriber.",
            "the model that LDM, SDM and GSH plan with",
            f"measured over computed maximum {model.min():.2f} to {model.max():.2f}, median {np.median(model):.2f} "
            "(10 %)",
            verdict(0.9 < float(np.median(model)) < 1.1),
            "Measured at the brokers, with NATS's own headers.",
        ),
        Claim(
            "SDM is similar to LDM.",
            "Fig. 6, 10",
            f"cov under NR {both[0].text()} and {both[1].text()} (similar: 0.1)",
            verdict(abs(both[0].mean - both[1].mean) < 0.1),
        ),
    ]


EXPERIMENTS = (
    Experiment(
        name="balance-testbed",
        paper="004",
        figure="Fig. 5 to 12",
        title="Brokers' loads on a live testbed",
        about="5 edge brokers and one of the cloud (NATS servers joined by gateways), 400 subscribers, the emergency "
        "workload with channels of 10, 20 and 30 s; 60 % of the subscribers live around one site. Load is what the "
        "brokers count themselves, in and out, per second of the workload, which runs 60 (quick: 120) times as fast. A "
        "client publishes the results of the channels in place of the data cluster. α = 0.05, γ = 0.5, looked at every "
        "two minutes.",
        points=lambda quick: [{"placement": placement} for placement in PLACEMENTS],
        seeds=(1, 3),
        measure=measure_testbed,
        claims=_claims,
        panels=[
            Panel("minute", y, "minute", label, title=placement, where={"placement": placement})
            for placement in PLACEMENTS
            for y, label in (("max_load", "maximum load (kB/s)"), ("cov", "cov"), ("moves", "migrations so far"))
        ],
        parallel=False,
    ),
)
