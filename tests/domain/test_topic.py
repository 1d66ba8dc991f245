"""Topic names and patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.domain.topic import TopicError, check_pattern, check_topic, covers, matches, overlaps

level = st.sampled_from(["a", "b", "c"])
topics = st.lists(level, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda levels, rest: ".".join([*levels, *rest]),
    st.lists(st.sampled_from(["a", "b", "*"]), min_size=1, max_size=3),
    st.sampled_from([[], [">"]]),
)


def literal_match(pattern: str, topic: str) -> bool:
    """The definition, level by level."""
    left, right = pattern.split("."), topic.split(".")
    if left[-1] == ">":
        return len(right) >= len(left) and literal_match(".".join(left[:-1]), ".".join(right[: len(left) - 1]))
    return len(left) == len(right) and all(a in ("*", b) for a, b in zip(left, right, strict=True))


EVERY_TOPIC = [".".join(t) for n in range(1, 6) for t in __import__("itertools").product("abz", repeat=n)]


@given(patterns, topics)
def test_matching_is_level_by_level(pattern: str, topic: str) -> None:
    assert matches(pattern, topic) == literal_match(pattern, topic)


@given(patterns, patterns)
def test_overlap_and_cover_agree_with_trying_every_topic(one: str, other: str) -> None:
    first = {t for t in EVERY_TOPIC if literal_match(one, t)}
    second = {t for t in EVERY_TOPIC if literal_match(other, t)}
    assert overlaps(one, other) == bool(first & second)
    assert covers(one, other) == (second <= first)


@pytest.mark.parametrize("topic", ["a", "gps.north.car-7", "Ünïcode.ok", "a_b.c:d", "1"])
def test_good_topics(topic: str) -> None:
    assert check_topic(topic) == topic
    assert check_pattern(topic) == topic


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("", "needed"),
        ("a..b", "empty"),
        ("a.*", "wildcard"),
        ("a b", "not allowed"),
        ("a.\udcff", "not allowed"),  # a byte that is no UTF-8, from a command line
        ("$x", "reserved"),
        ("a" * 201, "200"),
    ],
)
def test_bad_topics_say_why(topic: str, why: str) -> None:
    with pytest.raises(TopicError, match=why):
        check_topic(topic)


def test_a_pattern_says_where_its_wildcard_belongs() -> None:
    with pytest.raises(TopicError, match=r"^topic pattern 'a\.>\.b': `>` may only be the last level$"):
        check_pattern("a.>.b")
