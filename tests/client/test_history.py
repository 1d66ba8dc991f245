"""Which store is asked first, and how times enter a request."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast import InputError, field
from nearcast.client.history import condition_tree, microseconds
from nearcast.client.store_finder import rank_stores

trips = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.0001, 0.5), min_size=1)


@given(trips, st.integers())
def test_every_store_is_ranked_once_and_clearly_nearer_ones_come_first(near: dict[str, float], seed: int) -> None:
    ranked = rank_stores(near, random.Random(seed))
    assert sorted(ranked) == sorted(near)
    for one, later in pairwise(ranked):
        assert near[one] <= near[later] * 1.2 + 0.0005


def test_stores_at_about_the_same_distance_share_the_requests() -> None:
    choice = random.Random(1)
    first = Counter(rank_stores({"a": 0.0100, "b": 0.0105, "c": 0.0400}, choice)[0] for _ in range(1000))
    assert set(first) == {"a", "b"}
    assert 400 < first["a"] < 600


def test_times() -> None:
    assert microseconds(datetime(2026, 1, 1, tzinfo=UTC), "since") == 1767225600000000
    assert microseconds(1.5, "since") == 1500000
    assert microseconds(None, "since") is None
    with pytest.raises(InputError, match="since is 'noon'"):
        microseconds("noon", "since")  # type: ignore[arg-type]


def test_conditions() -> None:
    assert condition_tree(field("a") > 1) == [">", "a", 1]
    assert condition_tree(None) is None
