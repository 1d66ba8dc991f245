"""RELOC (Tanaka et al.), Fig. 10 to 16: homes of clients, on topics of a follow graph and on made-up ones."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, verdict
from nearcast.lab.experiments.figure import COLOURS, plain_axes
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
PAPER_METHODS = ("RA", "NS", "OTOS", "RELOC")
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
    search = homes.RefineParameters(sweeps=20 if quick else 300, perturbations=0, seed=seed)
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


def _smallest(results: Results, **point: Any) -> str:
    """The method of the paper with the smallest mean delay at a point."""
    return min(PAPER_METHODS, key=lambda method: results.mean("Y", method=method, **point).mean)


def _sigma_claims(results: Results) -> list[Claim]:
    claims = []
    for topics in ("dense", "sparse"):
        here = results.where(topics=topics)
        sigmas = [float(s) for s in here.values("sigma")]
        winners = {s: _smallest(here, sigma=s) for s in sigmas}
        fill = ", ".join(f"{here.mean('fill', method='NS', sigma=s).mean:.2f}" for s in sigmas)
        wide = [winners[s] == "RELOC" for s in sigmas if s >= 5]
        claims.append(
            Claim(
                f"RELOC has the smallest delay for σ ≥ 5 km ({topics} topics).",
                "RELOC",
                "; ".join(f"σ = {s:g}: {winners[s]}" for s in sigmas) + f" (NS fills the sites to {fill} of A)",
                verdict(*wide),
                "Where RELOC overtakes NS depends on how full the sites are: while NS fits, it is best. Our OTOS puts "
                "topics near their members, which the paper leaves open; hard to beat while these live close together.",
            )
        )
    most = results.most("storage_max", method="RELOC")
    printed = results.most("storage_max", method="RELOC as printed")
    claims.append(
        Claim(
            "RELOC's storage use never exceeds A.",
            "never above A",
            f"the fullest site of any city: {most:.2f} A; as printed {printed:.2f} A",
            verdict(most <= 1 + 1e-6),
            "As printed, cooperation stays within a cluster, and a full cluster overflows. Ours leaves it then.",
        )
    )
    near = results.ratio("distance_km", {"method": "NS"}, {"method": "RELOC"})
    over = results.most("storage_max", method="NS")
    claims.append(
        Claim(
            "NS has the shortest distance and overflows.",
            "smallest distance, Y2 grows with σ",
            f"distance {near.percent()} against RELOC; fullest site {over:.2f} A",
            verdict(near.high < 1, over > 1),
        )
    )
    stored = results.ratio("storage", {"method": "OTOS"}, {"method": "RELOC"})
    farther = results.ratio("Y1", {"method": "OTOS"}, {"method": "RELOC"})
    claims.append(
        Claim(
            "OTOS stores least but is farther than RELOC.",
            "smallest storage, larger Y1 at every σ",
            f"storage {stored.percent()}, Y1 {farther.percent()} against RELOC",
            verdict(stored.high < 1, farther.low > 1),
            ""
            if farther.low > 1
            else "Our OTOS chooses the site nearest to a topic's members; at small σ that is near.",
        )
    )
    ours = results.ratio("Y", {"method": "refined"}, {"method": "RELOC"})
    claims.append(
        Claim("Beyond the paper: refined is below RELOC.", "–", f"Y {ours.percent()}", verdict(ours.high < 1))
    )
    return claims


def _spool_points(quick: bool) -> list[Point]:
    values = (1.0, 2.0, 3.0) if quick else (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    return [{"topics": "dense", "p": p} for p in values]


def _spool_claims(results: Results) -> list[Claim]:
    winners = {float(p): _smallest(results, p=float(p)) for p in results.values("p")}
    delegated = results.mean("delegated", method="refined", p=3.0)
    most = results.most("storage_max", method="refined")
    return [
        Claim(
            "RELOC has the smallest delay at every spool size (σ = 5 km).",
            "RELOC",
            "; ".join(f"p = {p:g}: {winner}" for p, winner in winners.items()),
            verdict(*(winner == "RELOC" for winner in winners.values())),
            "With small spools everything fits and NS is best; our OTOS is near its members.",
        ),
        Claim(
            "Beyond the paper: at p = 3 refined keeps sites within A.",
            "–",
            f"delegated {delegated.text(2, ' %', 100)}, fullest site {most:.2f} A",
            verdict(delegated.mean < 0.001),
            "" if delegated.mean < 0.001 else "For some cities no plan without overflow was found in the sweeps given.",
        ),
    ]


def _cluster_claims(results: Results) -> list[Claim]:
    def spread(sigma: float) -> float:
        means = [results.mean("Y", sigma=sigma, K=k).mean for k in (1.0, 2.0, 4.0, 8.0)]
        return max(means) / min(means) - 1

    small = [float(s) for s in results.values("sigma") if float(s) <= 5]
    large = [float(s) for s in results.values("sigma") if float(s) >= 10]
    falls = {s: results.ratio("Y", {"K": 8.0}, {"K": 1.0}, sigma=s) for s in small}
    return [
        Claim(
            "With strong locality (σ = 1, 5) the delay falls as K grows.",
            "minimised by increasing K",
            "; ".join(f"σ = {s:g}: K = 8 against 1 {ratio.percent()}" for s, ratio in falls.items()),
            verdict(*(ratio.high < 1 for ratio in falls.values())),
        ),
        Claim(
            "From σ = 10 on the delay hardly depends on K.",
            "fluctuates, does not vary much",
            "; ".join(f"σ = {s:g}: {100 * spread(s):.0f} % between K = 1 and 8" for s in large),
            verdict(*(spread(s) < 0.25 for s in large)),
            "With few clusters homes are far (Y1), with many the sites overflow (Y2); here the two do not cancel.",
        ),
    ]


def _step_claims(results: Results) -> list[Claim]:
    ten, eleven = results.where(figure="Fig. 10"), results.where(figure="Fig. 11")
    before, after = ten.mean("compute_max", method="relation"), ten.mean("compute_max", method="cooperation")
    sites = {name: eleven.mean("sites", method=name).mean for name in PAPER_METHODS}
    return [
        Claim(
            "Relations gather the topic at few sites; cooperation brings them within their limits.",
            "shown for one example",
            f"compute of the fullest site {before.text()} B, then {after.text()} B",
            verdict(before.mean > 1, after.mean <= 1 + 1e-9),
        ),
        Claim(
            "RELOC manages a topic at more sites than OTOS and fewer than NS.",
            "shown for one example",
            "; ".join(f"{name} {count:.1f} sites" for name, count in sites.items()),
            verdict(sites["OTOS"] <= sites["RELOC"], sites["RELOC"] <= sites["NS"]),
            "No site can hold the whole topic: our OTOS moves publishers that overfill a site to the least used one, "
            "one by one, and so spreads them.",
        ),
    ]


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
    claims=_step_claims,
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
    claims=_sigma_claims,
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
    claims=_spool_claims,
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
    claims=_cluster_claims,
    panels=_panels("K", "clusters K"),
)

EXPERIMENTS = (STEPS, SIZES, SIGMA, SPOOL, NUMBER_OF_CLUSTERS)
