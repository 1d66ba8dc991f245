"""Digests tell sets of messages apart, whatever the order."""

from __future__ import annotations

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from nearcast.nats.digest import add_digests, content_hash, id_hash

NAMES = st.text("ab.", max_size=4).map(str.encode)
MESSAGES = st.lists(st.tuples(NAMES, NAMES, st.binary(max_size=4)), max_size=8)


def digest(messages: list[tuple[bytes, bytes, bytes]]) -> int:
    return reduce(add_digests, (content_hash(*message) for message in messages), 0)


@given(MESSAGES, MESSAGES)
def test_digests_are_equal_when_the_multisets_are(one, other):
    assert (digest(one) == digest(other)) == (sorted(one) == sorted(other))


def test_the_parts_of_a_message_are_kept_apart():
    assert content_hash(b"ab", b"c", b"") != content_hash(b"a", b"bc", b"") != content_hash(b"a", b"b", b"c")


def test_a_message_without_an_id_is_known_by_its_payload():
    assert id_hash(b"", b"on") == id_hash(b"", b"on") != id_hash(b"", b"off")
    assert id_hash(b"x", b"on") == id_hash(b"x", b"off")
