"""Content requests: the workload of *Storage planning and replica assignment*, Section 6.

Sites form a tree or a general graph. Topic t has a popularity p_t and a locality l_t, both Zipf in its rank
with exponents s_p and s_l; the ceil(l_t N) sites closest to a random centre ask for it, each at 25 p_t
requests/s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order

from nearcast.errors import InputError
from nearcast.lab.workloads.schedule import JOIN, PUBLISH, SUBSCRIBE, ScheduleBuilder
from nearcast.lab.workloads.workload import SiteMap, Workload
from nearcast.placement.storage import Network, from_edges

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints

__all__ = [
    "ContentParameters",
    "balanced_tree",
    "content",
    "locality",
    "popularity",
    "random_edges",
    "random_tree",
    "zipf_demand",
]


@dataclass(frozen=True)
class ContentParameters:
    """Defaults are the paper's (Section 6.1): N = 100, T = 10, 25 requests/s, uniform locality.

    A negative exponent makes the last topic the most popular, or the one asked for most widely. `rate_scale`
    thins the schedule, not the tables.
    """

    nodes: int = 100
    topics: int = 10
    popularity_exponent: float = 1.0
    locality_exponent: float = 0.0
    requests_s: float = 25.0
    graph: Literal["tree", "general"] = "tree"
    extra_edges: float = 0.5
    rate_scale: float = 0.1
    size: int = 512
    duration_s: float = 60.0
    seed: int = 1


def popularity(topics: int, exponent: float) -> Floats:
    """p_t: shares of the requests, Zipf in rank; they sum to 1."""
    weight = np.arange(1, topics + 1) ** -float(exponent)
    return np.asarray(weight / weight.sum())


def locality(topics: int, exponent: float) -> Floats:
    """l_t: the share of sites that ask for a topic, Zipf in rank; the widest is asked for everywhere."""
    weight = np.arange(1, topics + 1) ** -float(exponent)
    return np.asarray(weight / weight.max())


def random_edges(p: ContentParameters, rng: np.random.Generator) -> Ints:
    """Edges (a, b), a < b: a random tree; a general graph has `extra_edges` more per node."""
    tree = _tree_edges(p.nodes, rng)
    if p.graph == "tree":
        return tree
    possible = p.nodes * (p.nodes - 1) // 2
    wanted = min(len(tree) + int(p.extra_edges * p.nodes), possible)
    edges = tree
    while len(edges) < wanted:
        more = np.sort(rng.integers(0, p.nodes, (wanted, 2)), axis=1)
        both = np.concatenate((edges, more[more[:, 0] < more[:, 1]]))
        _, first = np.unique(both, axis=0, return_index=True)
        edges = both[np.sort(first)][:wanted]
    return edges


def random_tree(nodes: int, rng: np.random.Generator) -> Network:
    """A tree in which every node hangs off a random earlier one."""
    return from_edges(nodes, *_tree_edges(nodes, rng).T)


def balanced_tree(nodes: int, low: int, high: int, rng: np.random.Generator) -> Network:
    """A tree that is filled level by level: every node has `low` to `high` children, until there are enough nodes."""
    children = rng.integers(low, high + 1, size=nodes)
    return from_edges(nodes, np.repeat(np.arange(nodes), children)[: nodes - 1], np.arange(1, nodes))


def zipf_demand(
    network: Network,
    topics: int,
    rng: np.random.Generator,
    *,
    popularity_exponent: float = 1.0,
    locality_exponent: float | None = None,
) -> Floats:
    """r_i^t = 25 p_t requests/s at each asking node, topics × nodes; all nodes ask without a locality exponent.

    With one, topic t is asked for by the nodes closest to a random centre: its Zipf share of all nodes.
    """
    demand = np.repeat(25.0 * popularity(topics, popularity_exponent)[:, None], network.nodes, axis=1)
    if locality_exponent is not None:
        for topic, share in enumerate(popularity(topics, locality_exponent)):
            centre = rng.integers(network.nodes)
            farther = np.argsort(network.distance[centre], kind="stable")[int(np.ceil(share * network.nodes)) :]
            demand[topic, farther] = 0.0
    return demand


def content(p: ContentParameters) -> Workload:
    """Edges and demand for the storage planner, and the stream of requests."""
    if p.nodes < 2 or p.topics < 1:
        raise InputError(f"nodes is {p.nodes}, topics is {p.topics}; at least 2 and 1 are needed")
    rng = np.random.default_rng(p.seed)
    edges = random_edges(p, rng)
    graph = csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(p.nodes, p.nodes))
    share, reach = popularity(p.topics, p.popularity_exponent), locality(p.topics, p.locality_exponent)

    centre = rng.integers(p.nodes, size=p.topics)
    askers = []
    for t in range(p.topics):
        order = breadth_first_order(graph, centre[t], directed=False, return_predecessors=False)
        askers.append(np.sort(order[: int(np.ceil(reach[t] * p.nodes - 1e-9))]))
    topic = np.repeat(np.arange(p.topics), [len(a) for a in askers])
    node = np.concatenate(askers)
    rate = p.requests_s * share[topic]

    sites = [f"n{i}" for i in range(p.nodes)]
    topics = [f"topic{t}" for t in range(p.topics)]
    names = [*(f"reader{i}" for i in range(p.nodes)), *(f"provider{t}" for t in range(p.topics))]
    x, y = _layout(edges, p)
    home = np.append(np.arange(p.nodes), centre)
    events = ScheduleBuilder(names, [f"request.{t}" for t in topics], sites)
    # A request is a publication to the topic's provider, who sits at the centre of the interest in it.
    events.add(JOIN, 0.0, np.arange(len(names)), site=home, x=x[home], y=y[home])
    events.add(SUBSCRIBE, 0.0, p.nodes + np.arange(p.topics), np.arange(p.topics))
    requests = rng.poisson(rate * p.rate_scale * p.duration_s)
    which = np.repeat(np.arange(len(rate)), requests)
    when = rng.uniform(0, p.duration_s, len(which))
    events.add(PUBLISH, when, node[which], topic[which], x=x[node[which]], y=y[node[which]], size=p.size)

    site = np.array(sites, dtype=object)
    tables = {
        "edges": {"a": site[edges[:, 0]], "b": site[edges[:, 1]], "cost": np.ones(len(edges))},
        "demand": {"node": site[node], "topic": np.array(topics, dtype=object)[topic], "rate": rate},
    }
    about = {
        "nodes": p.nodes, "edges": len(edges), "graph": p.graph, "topics": p.topics,
        "popularity_exponent": p.popularity_exponent, "locality_exponent": p.locality_exponent,
        "requests_s": float(rate.sum()), "rate_scale": p.rate_scale, "duration_s": p.duration_s,
        "seed": p.seed,
    }  # fmt: skip
    plan = "stores --edges edges.csv --demand demand.csv --stores 20 --capacity 5 --min-replicas 2"
    load = np.bincount(node, weights=rate, minlength=p.nodes).astype(np.float64)
    return Workload("content", about, plan, tables, SiteMap(sites, x, y, load, ("", "")), events.build())


def _tree_edges(nodes: int, rng: np.random.Generator) -> Ints:
    child = np.arange(1, nodes)
    return np.stack((rng.integers(0, child), child), axis=1)


def _layout(edges: Ints, p: ContentParameters) -> tuple[Floats, Floats]:
    import rustworkx

    graph = rustworkx.PyGraph()
    graph.add_nodes_from(range(p.nodes))
    graph.add_edges_from_no_data([(int(a), int(b)) for a, b in edges])
    placed = rustworkx.spring_layout(graph, num_iter=200, seed=p.seed)
    x, y = np.array([placed[i] for i in range(p.nodes)]).T
    return x, y
