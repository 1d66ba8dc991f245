"""Ids seen lately."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.nats.deduplication import RecentContents, RecentIds


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


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([b"a", b"b"]), st.floats(0, 2)), max_size=40))
def test_contents_are_matched_one_for_one_within_the_window(steps: list[tuple[bool, bytes, float]]) -> None:
    contents, came, now = RecentContents(3.0), list[tuple[float, bytes]](), 0.0
    for arrives, payload, pause in steps:
        now += pause
        came = [(at, what) for at, what in came if at >= now - 3.0]
        if arrives:
            contents.note(payload, now)
            came.append((now, payload))
        else:
            oldest = next((entry for entry in came if entry[1] == payload), None)
            assert contents.match(payload, now) == (oldest is not None)
            if oldest is not None:
                came.remove(oldest)
