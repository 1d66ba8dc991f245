"""Conditions on JSON fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast import field
from nearcast.filters import Condition, FilterError, compile_condition

MESSAGE = {"speed": 50, "kind": "car", "at": {"lat": 35.6, "tags": ["a"]}, "gone": None}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (field("speed") == 50, True),
        (field("speed") != 50, False),
        (field("speed") > 49.5, True),
        (field("speed") >= 50, True),
        (field("speed") < 50, False),
        (field("speed") <= 50, True),
        (field("speed") < "x", False),
        (field("kind").one_of("bus", "car"), True),
        (field("kind").one_of(), False),
        (field("at.lat") > 35, True),
        (field("at.lon") > 35, False),
        (field("at.lat.deep") == 1, False),
        (field("missing") != 1, False),
        (field("missing").exists(), False),
        (field("gone").exists(), True),
        (~field("missing").exists(), True),
        ((field("speed") > 10) & (field("kind") == "bus"), False),
        ((field("speed") > 10) | (field("kind") == "bus"), True),
        (~((field("speed") > 10) & (field("kind") == "car")), False),
    ],
)
def test_conditions(condition: Condition, holds: bool) -> None:
    over_the_wire = msgspec.msgpack.decode(msgspec.msgpack.encode(condition.tree))
    assert compile_condition(over_the_wire)(MESSAGE) is holds


@given(st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers()), st.booleans()))
def test_messages_that_are_no_objects_match_no_comparison(message: object) -> None:
    assert compile_condition((field("a") == 1).tree)(message) is False


@pytest.mark.parametrize(
    "tree", [None, [], ["and"], ["and", ["=", "a", 1]], ["~", "a", 1], ["=", 1, 1], "x", ["in", "a", 1]]
)
def test_what_is_no_condition_is_refused(tree: object) -> None:
    with pytest.raises(FilterError):
        compile_condition(tree)


def test_python_words_instead_of_signs_are_refused() -> None:
    with pytest.raises(FilterError, match="&"):
        _ = (field("a") == 1) and (field("b") == 2)
    with pytest.raises(FilterError):
        _ = (field("a") == 1) & True


def nested(levels: int) -> list[Any]:
    tree: list[Any] = ["exists", "a"]
    for _ in range(levels):
        tree = ["not", tree]
    return tree


@pytest.mark.parametrize(
    "tree",
    [
        ["in", "kind", ["x"] * 300_000],
        ["and", *([["=", "a", 1]] * 100_000)],
        ["=", "a" * 1_000_000, 1],
        ["=", "a", {"b": 1}],
        nested(10_000),
    ],
)
def test_a_condition_that_is_too_large_is_refused_before_it_is_compiled(tree: Any) -> None:
    with pytest.raises(FilterError, match=r"too large|too deeply|plain values"):
        compile_condition(tree)
