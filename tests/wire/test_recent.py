"""Ids seen lately."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.wire.recent import RecentIds


@given(st.lists(st.integers(0, 30)), st.integers(1, 10))
def test_the_last_ids_are_known_and_memory_is_bounded(ids: list[int], size: int) -> None:
    recent = RecentIds(size)
    distinct: list[bytes] = []
    for n in ids:
        name = b"%d" % n
        if name in distinct[-size:]:
            assert recent.seen(name)
        elif not recent.seen(name):
            distinct = [d for d in distinct if d != name] + [name]
        assert name in recent
        assert len(recent._older) + len(recent._younger) <= 2 * size


def test_messages_without_an_id_are_never_the_same() -> None:
    recent = RecentIds()
    assert not recent.seen(b"")
    assert not recent.seen(b"")
