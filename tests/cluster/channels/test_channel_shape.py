"""Subscriptions as base and delta, without Spark: whatever comes and goes, the live rows are those wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nearcast.cluster.channels.channel_shape import ChannelShape, SubscriptionBase, SubscriptionNames, shape_of
from nearcast.cluster.channels.statement import Statement, ValidatedChannel, levels_in
from nearcast.domain.channel import ChannelSpec, Parameter

STATEMENT = Statement("SELECT 1", "nc__", "nc__k0", "", (("nc__cells0", "lat", "lon", "x"),))


def validated(name: str, **settings: Any) -> ValidatedChannel:
    spec = ChannelSpec(name, "…", (Parameter("x", "int"),), new="reports", **settings)
    return ValidatedChannel(spec, STATEMENT, ("reports",), (("id", "id"),), True)


def live(shape: ChannelShape) -> dict[tuple[str, str], int]:
    rows = shape.live_rows(shape.state).to_pylist()
    return {(row["channel"], row["key"]): row["nc__value_x"] for row in rows}


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.dictionaries(st.sampled_from("klmnop"), st.integers(0, 200), max_size=4),
        st.sets(st.sampled_from("klmnop"), max_size=3),
        st.sampled_from(["", "", "fold", "begin a fold", "end the fold", "clear"]),
    ),
    max_size=25,
)


@given(CHANGES)
def test_the_live_rows_are_those_wanted_while_bases_are_made(
    changes: list[tuple[str, dict[str, int], set[str], str]],
) -> None:
    shape, model = ChannelShape(validated("a")), dict[tuple[str, str], int]()
    begun = None
    for channel, added, removed, what in changes:
        shape.change(channel, {key: {"x": x} for key, x in added.items()}, removed - added.keys())
        for key in removed:
            model.pop((channel, key), None)
        model.update({(channel, key): x for key, x in added.items()})
        if what == "clear":
            shape.clear(channel)
            model = {name: x for name, x in model.items() if name[0] != channel}
        if what in ("fold", "begin a fold"):
            begun = shape.state, SubscriptionBase(shape.live_rows(shape.state), None)
        if what in ("fold", "end the fold") and begun is not None:
            shape.replace_base(*begun)
            begun = None
            if what == "fold":
                assert shape.state.delta.num_rows == 0
        assert live(shape) == model
        assert {name: shape.count(name) for name in ("a", "b")} == {
            name: sum(channel == name for channel, _ in model) for name in ("a", "b")
        }
        check_names(shape, model)


def check_names(shape: ChannelShape, model: Mapping[tuple[str, str], int]) -> None:
    """Results of all rows, also of removed ones, become those of live subscriptions."""
    state = shape.state
    numbers = pa.chunked_array([*state.base.rows["nc__key"].chunks, *state.delta["nc__key"].chunks], pa.int64())
    found = pa.table(
        {"number": numbers, "row": numbers.cast(pa.string()), "position": pa.nulls(len(numbers), pa.int32())}
    )
    matches = SubscriptionNames(shape.names(state)).matches(found, state.removed)
    assert sorted(zip(matches["channel"].to_pylist(), matches["key"].to_pylist(), strict=True)) == sorted(model)


@given(
    st.lists(st.sets(st.one_of(st.integers(0, 40), st.integers(0, 5000)), max_size=30), max_size=3),
    st.lists(st.integers(0, 5100), max_size=40),
)
def test_numbers_are_named_whether_they_lie_close_or_far_apart(tables: list[set[int]], found: list[int]) -> None:
    owner = {number: n for n, numbers in reversed(list(enumerate(tables))) for number in numbers}
    tables = [{number for number in numbers if owner[number] == n} for n, numbers in enumerate(tables)]
    named = [
        pa.table(
            {
                "number": pa.array(sorted(numbers), pa.int64()),
                "channel": pa.array([f"c{n}"] * len(numbers), pa.string()),
                "key": pa.array([f"k{number}" for number in sorted(numbers)], pa.string()),
            }
        )
        for n, numbers in enumerate(tables)
    ]
    numbers = pa.array(found, pa.int64())
    rows = pa.table({"number": numbers, "row": numbers.cast(pa.string()), "position": pa.nulls(len(found), pa.int32())})
    matches = SubscriptionNames(named).matches(rows, frozenset())
    expected = [(f"c{owner[number]}", f"k{number}", str(number)) for number in found if number in owner]
    assert sorted(zip(*(matches[name].to_pylist() for name in ("channel", "key", "row")), strict=True)) == sorted(
        expected
    )


def test_levels_on_the_grid_are_those_of_the_rows() -> None:
    shape = ChannelShape(validated("a"))
    shape.change("a", {"k": {"x": 10}, "l": {"x": 65}, "m": {"x": 128}, "n": {"x": 129}}, ())
    assert levels_in(shape.validated, shape.state.delta) == {"x": frozenset({0, 1, 2})}


def test_continuous_channels_of_one_statement_have_one_shape_and_scheduled_ones_their_own() -> None:
    assert shape_of(validated("a")) == shape_of(validated("b"))
    assert shape_of(validated("a", period=1.0)) != shape_of(validated("b", period=1.0))
