"""The spool is a ring of the last messages that a second process can read and that outlives both."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast import NearcastError
from nearcast.site.worker.spool import Spool

messages = st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=3000)), max_size=120)


@given(messages, st.integers(1, 20), st.integers(1, 8192))
def test_it_holds_exactly_the_last_messages_in_order(batch: list[tuple[bytes, bytes]], slots: int, arena: int) -> None:
    with TemporaryDirectory() as folder:
        spool = Spool(Path(folder) / "s", slots, arena)
        reader = Spool.open_for_reading(Path(folder) / "s")
        for number, (message_id, payload) in enumerate(batch):
            assert spool.append(message_id, payload) == number
            reader.refresh()
            kept = range(max(0, number + 1 - slots), number + 1)
            assert [spool.read(n) for n in kept] == [batch[n] for n in kept]
            assert [reader.read(n) for n in kept] == [batch[n] for n in kept]
        spool.close()
        reader.close()


@given(messages, st.integers(1, 10), st.integers(1, 4096), st.data())
def test_what_is_needed_stays_though_the_arena_is_small(
    batch: list[tuple[bytes, bytes]], kept: int, arena: int, data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder:
        path, needed = Path(folder) / "s", 0
        spool = Spool(path, kept + 20, arena, oldest_needed=lambda: needed, read_ahead=20, read_ahead_bytes=2000)
        for number, (message_id, payload) in enumerate(batch):
            needed = data.draw(st.integers(max(needed, number - 20 - kept + 1, 0), number))
            spool.append(message_id, payload)
            assert [spool.read(n) for n in range(needed, number + 1)] == batch[needed : number + 1]
            assert spool.first <= needed
        if batch and data.draw(st.booleans()):  # what a successor takes for readable is
            spool.close()
            spool = Spool(path, kept + 20)
            assert [spool.read(n) for n in range(spool.first, spool.count)] == batch[spool.first :]
        spool.close()


def test_it_is_found_again_after_a_restart(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", 3)
    for n in range(5):
        spool.append(b"id%d" % n, b"payload")
    spool.close()
    again = Spool(tmp_path / "s", 3)
    assert (again.first, again.count) == (2, 5)
    assert again.append(b"id5", b"x") == 5
    assert [again.read(n)[0] for n in range(again.first, again.count)] == [b"id3", b"id4", b"id5"]
    again.close()


@pytest.mark.parametrize(("slots", "first"), [(2, 3), (10, 2)])
def test_a_changed_size_keeps_what_fits(tmp_path: Path, slots: int, first: int) -> None:
    spool = Spool(tmp_path / "s", 3)
    for n in range(5):
        spool.append(b"id%d" % n, b"payload")
    spool.close()
    resized = Spool(tmp_path / "s", slots)
    assert resized.count == 5
    assert [resized.read(n)[0] for n in range(first, 5)] == [b"id%d" % n for n in range(first, 5)]
    resized.close()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"x" * 100)
    with pytest.raises(NearcastError, match="not a spool file"):
        Spool(tmp_path / "s", 3)
