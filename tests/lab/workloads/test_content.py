"""Content requests: popularity, locality and graphs as in the storage paper's evaluation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, shortest_path
from tests.lab.workloads.literal import check_prediction

from nearcast.errors import InputError
from nearcast.lab.workloads.content import ContentParameters, content, locality, popularity, random_edges


def test_popularity_and_locality_are_zipf_in_rank() -> None:
    assert popularity(10, 0).tolist() == pytest.approx([0.1] * 10)  # the paper's p = 0.1 for s_p = 0
    assert popularity(3, 1).tolist() == pytest.approx([6 / 11, 3 / 11, 2 / 11])
    assert np.argmax(popularity(5, -1)) == 4  # the last topic is the most popular
    assert locality(4, 0).tolist() == [1, 1, 1, 1]
    assert locality(4, 1).tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert locality(4, -1).tolist() == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1])


@given(nodes=st.integers(2, 60), seed=st.integers(0, 99), extra=st.floats(0, 40))
def test_graphs_are_connected_without_double_edges(nodes: int, seed: int, extra: float) -> None:
    for graph in ("tree", "general"):
        p = ContentParameters(nodes=nodes, graph=graph, extra_edges=extra)  # type: ignore[arg-type]
        edges = random_edges(p, np.random.default_rng(seed))
        assert (edges[:, 0] < edges[:, 1]).all()
        assert len(np.unique(edges, axis=0)) == len(edges)
        wanted = nodes - 1 + (int(extra * nodes) if graph == "general" else 0)
        assert len(edges) == min(wanted, nodes * (nodes - 1) // 2)
        matrix = csr_matrix((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
        assert connected_components(matrix, directed=False)[0] == 1


def test_a_topic_is_asked_for_by_the_nodes_closest_to_a_centre() -> None:
    made = content(ContentParameters(nodes=40, topics=4, locality_exponent=1.0, popularity_exponent=0.0))
    edges, demand = made.tables["edges"], made.tables["demand"]
    number = {f"n{i}": i for i in range(40)}
    a, b = ([number[n] for n in edges[c]] for c in ("a", "b"))
    hops = shortest_path(csr_matrix((np.ones(len(a)), (a, b)), shape=(40, 40)), directed=False, unweighted=True)
    for rank in range(4):
        asking = [number[n] for n in demand["node"][demand["topic"] == f"topic{rank}"]]
        assert len(asking) == int(np.ceil(40 / (rank + 1)))
        others = np.setdiff1d(np.arange(40), asking)
        # Some centre has all that ask no farther away than any that do not.
        assert any(hops[c, asking].max() <= hops[c, others].min(initial=99) for c in asking)


def test_rates_are_25_requests_a_second_times_popularity() -> None:
    made = content(ContentParameters(nodes=20, topics=3))
    demand = made.tables["demand"]
    for rank, share in enumerate(popularity(3, 1.0)):
        assert demand["rate"][demand["topic"] == f"topic{rank}"] == pytest.approx(25 * share)
    events = made.schedule.count(4)
    # 20 nodes x 25 requests/s x 60 s, thinned to a tenth: Poisson.
    assert events == pytest.approx(3000, abs=5 * np.sqrt(3000))


def test_the_prediction_holds_and_the_seed_decides() -> None:
    p = ContentParameters(nodes=20, topics=3, graph="general")
    check_prediction(content(p).schedule)
    assert content(p).schedule.time_s.tolist() == content(p).schedule.time_s.tolist()


def test_a_network_of_one_is_refused() -> None:
    with pytest.raises(InputError, match="nodes is 1"):
        content(ContentParameters(nodes=1))
