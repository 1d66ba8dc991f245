"""The latest record of each key, against a plain oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.datasets import keyed_state
from nearcast.cluster.datasets.keyed_state import KeyedState
from nearcast.domain.dataset import DatasetSpec

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("user", pa.string()), ("at", UTC), ("_sequence", pa.int64()), ("_arrived", UTC)])
SPEC = DatasetSpec("d", "user STRING, at TIMESTAMP", "fed.d", "user", "at")

Record = tuple[str | None, int | None]
records = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", None]), st.none() | st.integers(1, 9)), max_size=12)


def table(numbered: list[tuple[int, Record]]) -> pa.Table:
    columns: list[Any] = [[record[0] for _, record in numbered], [record[1] for _, record in numbered]]
    columns += [[n for n, _ in numbered], [5] * len(numbered)]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def content(state: KeyedState) -> dict[str | None, tuple[int, int]]:
    rows = state.rows()
    times = [at if at is not None else 5 for at in rows["at"].cast(pa.int64()).to_pylist()]
    found = dict(zip(rows["user"].to_pylist(), zip(times, rows["_sequence"].to_pylist(), strict=True), strict=True))
    assert len(found) == rows.num_rows == len(state), "a key twice"
    return found


@given(st.lists(records, max_size=4), st.integers(0, 4), st.lists(st.sampled_from(["a", "b", "z", None]), max_size=4))
def test_some_keys_are_found_in_base_and_delta(
    batches: list[list[Record]], folded: int, keys: list[str | None]
) -> None:
    state, count = KeyedState(SPEC, SCHEMA), 0
    for number, batch in enumerate(batches):
        state.update(table([(count + n, record) for n, record in enumerate(batch)]))
        count += len(batch)
        if number + 1 == folded:
            state.fold()
    wanted = {key for key in keys if key is not None}  # a null equals nothing
    expected = [row for row in state.rows().to_pylist() if row["user"] in wanted]
    found = state.of_keys(pa.chunked_array([pa.array(keys, pa.string())])).to_pylist()
    assert sorted(found, key=lambda row: row["user"]) == sorted(expected, key=lambda row: row["user"])


@given(st.lists(records, max_size=6), st.lists(st.booleans(), min_size=6, max_size=6), st.randoms())
def test_the_latest_by_time_and_sequence_however_records_arrive(
    batches: list[list[Record]], folds: list[bool], rng: Any
) -> None:
    state = KeyedState(SPEC, SCHEMA)
    numbered: list[tuple[int, Record]] = []
    for batch, fold in zip(batches, folds, strict=False):
        rows = [(len(numbered) + n, record) for n, record in enumerate(batch)]
        numbered += rows
        state.update(table(rows))
        if fold:
            state.fold()
    expected: dict[str | None, tuple[int, int]] = {}
    for n, (user, at) in numbered:
        expected[user] = max(expected.get(user, (0, 0)), (at if at is not None else 5, n))
    assert content(state) == expected
    # As after a restart: the same records in another order, in other batches.
    rng.shuffle(numbered)
    again = KeyedState(SPEC, SCHEMA)
    again.update(table(numbered[: len(numbered) // 2]))
    again.fold()
    again.update(table(numbered[len(numbered) // 2 :]))
    assert content(again) == expected
    state.expire(4)
    assert content(state) == {user: latest for user, latest in expected.items() if latest[0] >= 4}


def test_equal_hashes_do_not_mix_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_state, "_hashes", lambda keys: np.zeros(len(keys), dtype=np.uint64))
    state = KeyedState(SPEC, SCHEMA)
    state.update(table([(1, ("a", 1)), (2, ("b", 2)), (3, (None, 3))]))
    state.fold()
    state.update(table([(4, ("b", 1)), (5, ("a", 4)), (6, ("c", 1))]))
    assert content(state) == {"a": (4, 5), "b": (2, 2), "c": (1, 6), None: (3, 3)}
