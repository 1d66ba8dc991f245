"""RELOC (Tanaka et al.), Fig. 10 to 16: homes of clients, on topics of a follow graph and on made-up ones."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.lab.experiments.figure import COLOURS, plain_axes
from nearcast.lab.experiments.reloc_claims import cluster_claims, sigma_claims, spool_claims, step_claims
from nearcast.lab.workloads.city import CityParameters, city, random_members
from nearcast.lab.workloads.follow import FollowParameters, memberships
from nearcast.lab.workloads.formats import read_follows
from nearcast.placement import homes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.figure import Figure

    from nearcast.lab.experiments.experiment import Point, Row, Task
    from nearcast.lab.experiments.results import Results

__all__ = ["EXPERIMENTS"]

DATA = "sinanet/edge.txt"
CLUSTERS = 4  # K
SIGMAS = (1.0, 5.0, 10.0, 15.0, 20.0)


@lru_cache(maxsize=4)
def _follows(path: Path) -> Any:
    return read_follows(path)


def topics_of(task: Task) -> Any:
    """Topics × clients: dense ones are made up (12.5 members each), sparse ones are lines of a follow graph."""
    if task["topics"] == "dense":
        return random_members(64, 600, task.seed)
    if task.data is None:
        return random_members(64, 280, task.seed, (3, 11))
    topic, user = memberships(_follows(task.data), FollowParameters(seed=task.seed))
    users, client = np.unique(user, return_inverse=True)
    return homes.membership(topic, client, (64, len(users)))


def _problem(task: Task, **changes: float) -> homes.HomesProblem:
    return city(topics_of(task), CityParameters(**changes), seed=task.seed)  # type: ignore[arg-type]


def _row(problem: homes.HomesProblem, method: str, plan: homes.HomesPlan) -> Row:
    to_home = problem.client_site_ms[np.arange(problem.clients), plan.home]
    return {
        "method": method,
        "Y": plan.delay_ms,
        "Y1": plan.distance_delay_ms,
        "Y2": plan.resource_delay_ms,
        "distance_km": float(to_home.mean()) / 0.1,
        "storage": float(plan.storage_used.mean()),
        "storage_max": float((plan.storage_used / problem.storage).max()),
        "compute": float(plan.compute_used.mean()),
        "delegated": plan.delegated_share,
        "fill": float(plan.storage_used.sum() / problem.storage.sum()),
    }


def _all_methods(problem: homes.HomesProblem, seed: int, *, quick: bool) -> Iterator[Row]:
    reloc = homes.RelocParameters(clusters=CLUSTERS, seed=seed)
    as_printed = homes.RelocParameters(clusters=CLUSTERS, seed=seed, leave_cluster=False)
    yield _row(problem, "RA", homes.random(problem, seed))
    yield _row(problem, "NS", homes.nearest(problem))
    yield _row(problem, "OTOS", homes.one_topic_one_site(problem))
    yield _row(problem, "RELOC as printed", homes.reloc(problem, as_printed))
    yield _row(problem, "RELOC", homes.reloc(problem, reloc))
    # In full what `nearcast plan homes` does: where sites are nearly full, perturbing finds plans without overflow.
    search = homes.RefineParameters(seed=seed, **({"sweeps": 20, "perturbations": 0} if quick else {}))
    yield _row(problem, "refined", homes.refined(problem, search))


def measure_sigma(task: Task) -> Iterator[Row]:
    """Fig. 14."""
    return _all_methods(_problem(task, spread_km=task.number("sigma")), task.seed, quick=task.quick)


def measure_spool(task: Task) -> Iterator[Row]:
    """Fig. 15: u_n = p·|C_n|."""
    problem = _problem(task, spool_per_member=task.number("p"))
    for row in _all_methods(problem, task.seed, quick=task.quick):
        yield {**row, "spool": float(problem.spool_size.mean())}


def measure_clusters(task: Task) -> Iterator[Row]:
    """Fig. 16: one row per K on the same city."""
    problem = _problem(task, spread_km=task.number("sigma"))
    for clusters in (1, 2, 4, 8, 16):
        plan = homes.reloc(problem, homes.RelocParameters(clusters=clusters, seed=task.seed))
        yield {**_row(problem, f"σ = {task.number('sigma'):g} km", plan), "K": float(clusters)}


def measure_steps(task: Task) -> Iterator[Row]:
    """Fig. 10 and 11: one topic of eleven members, with A = 11 and B = 40, and A = 16 and B = 80.

    The paper: A = 7 and B = 20 (its Table 1), and A = 10 and B = 50.
    """
    members = homes.membership([0] * 11, range(11), (1, 11))
    for figure, storage, compute in (("10", 11.0, 40.0), ("11", 16.0, 80.0)):
        parameters = CityParameters(spread_km=10.0, spool_per_member=1.0, storage=storage, compute=compute)
        problem = city(members, parameters, seed=task.seed)
        if figure == "10":
            steps = homes.reloc_steps(problem, homes.RelocParameters(clusters=CLUSTERS, seed=task.seed))
            plans = {"locality": steps.locality, "relation": steps.relation, "cooperation": steps.cooperation}
        else:
            plans = {
                "RA": homes.random(problem, task.seed),
                "NS": homes.nearest(problem),
                "OTOS": homes.one_topic_one_site(problem),
                "RELOC": homes.reloc(problem, homes.RelocParameters(clusters=CLUSTERS, seed=task.seed)),
                "refined": homes.refined(problem, homes.RefineParameters(sweeps=50, seed=task.seed)),
            }
        for name, plan in plans.items():
            sites = float((plan.storage_used > 0).sum())
            over = float((plan.compute_used / problem.compute).max())
            yield {**_row(problem, name, plan), "figure": f"Fig. {figure}", "sites": sites, "compute_max": over}


def measure_sizes(task: Task) -> Iterator[Row]:
    """Fig. 13: members per topic."""
    for size in np.diff(topics_of(task).indptr).tolist():
        yield {"method": str(task["topics"]), "members": float(size)}


def _draw_sizes(results: Results, figure: Figure) -> None:
    axes: Any = figure.subplots(1, 2, squeeze=False)[0]
    for place, kind, colour in zip(axes, results.values("topics"), COLOURS, strict=False):
        members = results.where(topics=kind).numbers("members")
        place.hist(members, bins=np.arange(1.5, 22.5), color=colour, edgecolor="white", linewidth=0.5)
        place.set_title(f"{kind}: mean {members.mean():.1f}", fontsize=9, loc="left")
        place.set_xlabel("publishers/subscribers of a topic", fontsize=9)
        place.set_xticks(range(2, 22, 3))
        place.set_ylabel("topics", fontsize=9)
        plain_axes(place)


def _sigma_points(quick: bool) -> list[Point]:
    sigmas = (1.0, 5.0, 20.0) if quick else SIGMAS
    return [{"topics": topics, "sigma": sigma} for topics in ("dense", "sparse") for sigma in sigmas]


def _spool_points(quick: bool) -> list[Point]:
    values = (1.0, 2.0, 3.0) if quick else (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    return [{"topics": "dense", "p": p} for p in values]


def _panels(x: str, label: str, **where: Any) -> list[Panel]:
    axes: tuple[tuple[str, str, dict[str, float]], ...] = (
        ("storage", "storage used per site", {"A": 640.0}),
        ("compute", "compute used per site", {"B": 3200.0}),
        ("distance_km", "km to the home site", {}),
        ("Y", "delay Y, ms", {}),
        ("Y1", "Y1 (distance), ms", {}),
        ("Y2", "Y2 (resources), ms", {}),
    )
    return [Panel(x, y, label, text, where=where, limits=limits) for y, text, limits in axes]


STEPS = Experiment(
    name="reloc-steps",
    paper="000",
    figure="Fig. 10/11",
    title="RELOC step by step and beside the others, one topic",
    about="One topic of eleven members at σ = 10 km, K = 4. The paper's example has seven members, A = 7 and B = 20.",
    points=lambda quick: [{"topics": "one"}],
    seeds=(20, 100),
    measure=measure_steps,
    claims=step_claims,
    panels=[
        Panel("method", "sites", "", "sites that manage the topic", series="figure"),
        Panel("method", "compute_max", "", "compute of the fullest site / B", series="figure", limits={"B": 1.0}),
        Panel("method", "Y", "", "delay Y, ms", series="figure"),
    ],
    size=(13, 3.6),
)
SIZES = Experiment(
    name="reloc-topics",
    paper="000",
    figure="Fig. 13",
    title="Members per topic",
    about="64 topics, at most 21 members. Dense: made up. Sparse: lines of a follow graph (made up without --data).",
    points=lambda quick: [{"topics": "dense"}, {"topics": "sparse"}],
    seeds=(3, 10),
    measure=measure_sizes,
    claims=lambda results: [
        Claim(
            "Topics have at most 21 members, most of them fewer.",
            "max |C_n| = 21",
            f"largest {results.most('members'):.0f}; mean {results.mean('members', topics='dense').text(1)} dense, "
            f"{results.mean('members', topics='sparse').text(1)} sparse",
            verdict(results.most("members") <= 21),
        )
    ],
    draw=_draw_sizes,
    size=(8, 3.2),
    data=DATA,
)
SIGMA = Experiment(
    name="reloc-sigma",
    paper="000",
    figure="Fig. 14",
    title="Homes against locality σ, dense topics",
    about="A = 640, B = 3200, L = 16, K = 4, p = 2. The figure shows the dense topics, the claims both.",
    points=_sigma_points,
    seeds=(5, 20),
    measure=measure_sigma,
    claims=sigma_claims,
    panels=_panels("sigma", "locality σ, km", topics="dense"),
    data=DATA,
)
SPOOL = Experiment(
    name="reloc-spool",
    paper="000",
    figure="Fig. 15",
    title="Homes against the size of spools",
    about="σ = 5 km, K = 4; p messages are spooled per member.",
    points=_spool_points,
    seeds=(6, 20),
    measure=measure_spool,
    claims=spool_claims,
    panels=_panels("p", "spooled messages per member p"),
)
NUMBER_OF_CLUSTERS = Experiment(
    name="reloc-clusters",
    paper="000",
    figure="Fig. 16",
    title="RELOC against the number of clusters K",
    about="p = 2, dense topics; K = 16 is one site per cluster, that is NS.",
    points=lambda quick: [{"topics": "dense", "sigma": s} for s in ((1.0, 5.0, 10.0) if quick else SIGMAS)],
    seeds=(4, 20),
    measure=measure_clusters,
    claims=cluster_claims,
    panels=_panels("K", "clusters K"),
)

EXPERIMENTS = (STEPS, SIZES, SIGMA, SPOOL, NUMBER_OF_CLUSTERS)
