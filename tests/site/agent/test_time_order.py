"""History is read in the order of (time, id), whatever the order of storing, also while messages come in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.errors import InputError
from nearcast.nats.streams import StoredEntry, StreamError
from nearcast.site.agent import time_order
from nearcast.site.agent.store_index import BUCKET_US, IndexedMessage, StoreIndex
from nearcast.site.agent.time_order import BEGINNING, TimeOrder, following, position_of

FOREVER = 1 << 53
TIMES = st.lists(st.integers(1, 4 * BUCKET_US), max_size=60)


class Stream:
    """A stream in memory, its index, and a reader of it. grow: messages that come with each read."""

    def __init__(self, times: list[int], spread: int = 1) -> None:
        self.entries: list[StoredEntry] = []
        self.index = StoreIndex(None).stream("s")
        self.grow: list[int] = []
        self._spread = spread
        self.store(times)

    def store(self, times: list[int]) -> None:
        for time_us in times:
            sequence = self._spread * (len(self.entries) + 1)
            entry = StoredEntry(sequence, "pub.t", 0, b"p~a:x:%d:%d" % (time_us, sequence), b"")
            self.entries.append(entry)
            self.index.add([IndexedMessage(sequence, time_us, sequence)], 0.0)

    async def pages(self, stream: str, subject: str, low: int, high: int) -> AsyncGenerator[list[StoredEntry], None]:
        found = [entry for entry in self.entries if low <= entry.sequence < high]
        if self.grow:
            self.store([self.grow.pop(0)])
        for start in range(0, len(found), 7):
            yield found[start : start + 7]

    def order(self, stored_after: int = 0) -> TimeOrder:
        return TimeOrder(self, self.index, "pub.t", stored_after)


async def all_of(lists) -> list[StoredEntry]:
    return [entry async for entries in lists for entry in entries]


@given(TIMES, st.sampled_from([1, 50, 200, 1500]))
def test_forwards_and_backwards_are_the_order_of_time_and_id(times, spread):
    stream = Stream(times, spread)
    expected = sorted(stream.entries, key=position_of)
    assert asyncio.run(all_of(stream.order().forwards(BEGINNING, FOREVER))) == expected
    assert asyncio.run(all_of(stream.order().backwards((FOREVER, b"")))) == expected[::-1]


@given(TIMES, st.integers(0, 60), st.integers(0, 4 * BUCKET_US))
def test_it_goes_on_at_any_position_and_ends_at_a_time(times, start, until):
    stream = Stream(times)
    expected = sorted(stream.entries, key=position_of)
    cursor = following(position_of(expected[start])) if start < len(expected) else BEGINNING
    left = [entry for entry in expected if position_of(entry) >= cursor and entry.time_us < until]
    assert asyncio.run(all_of(stream.order().forwards(cursor, until))) == left


@given(TIMES, st.integers(0, 60))
def test_what_was_stored_after_a_sequence_is_given_in_order(times, stored_after):
    stream = Stream(times)
    expected = sorted((entry for entry in stream.entries if entry.sequence > stored_after), key=position_of)
    assert asyncio.run(all_of(stream.order(stored_after).forwards(BEGINNING, FOREVER))) == expected


@settings(max_examples=100)
@given(TIMES, TIMES)
def test_messages_that_come_meanwhile_leave_no_gap(times, later):
    stream = Stream(times)
    stream.grow = list(later)
    order = stream.order()
    got = asyncio.run(all_of(order.forwards(BEGINNING, FOREVER)))
    assert got == sorted((entry for entry in stream.entries if entry.sequence <= order.end), key=position_of)
    assert order.end == len(times)


def test_a_message_that_is_stored_twice_is_given_once():
    stream = Stream([5])
    stream.entries.append(stream.entries[0]._replace(sequence=2))
    stream.index.add([IndexedMessage(2, 5, 1)], 0.0)
    assert len(asyncio.run(all_of(stream.order().forwards(BEGINNING, FOREVER)))) == 1


def test_an_index_that_was_replaced_is_not_read_further():
    stream = Stream([5])
    order = stream.order()
    stream.index.replaced = True
    with pytest.raises(StreamError, match="ask again"):
        asyncio.run(all_of(order.forwards(BEGINNING, FOREVER)))


def test_what_must_be_in_memory_to_be_put_in_order_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers write the times: a million messages of one microsecond would all be read before the first is given."""
    monkeypatch.setattr(time_order, "MOST_HELD", 300 * 2500)
    stream = Stream([7] * 3000)
    for lists in (stream.order().forwards(BEGINNING, FOREVER), stream.order().backwards((FOREVER, b""))):
        with pytest.raises(InputError, match="are of about the same time"):
            asyncio.run(all_of(lists))
    in_time = Stream(list(range(1, 9000)))
    assert len(asyncio.run(all_of(in_time.order().forwards(BEGINNING, FOREVER)))) == 8999


@given(TIMES, st.sampled_from([1, 50, 1500]))
def test_all_before_what_was_reached_was_given(times, spread):
    stream = Stream(times, spread)
    expected = sorted(stream.entries, key=position_of)

    async def check() -> None:
        order, given_so_far = stream.order(), list[StoredEntry]()
        async for entries in order.forwards(BEGINNING, FOREVER):
            given_so_far += entries
            assert given_so_far == [entry for entry in expected if entry.time_us < order.reached_us]
        order, given_so_far = stream.order(), []
        async for entries in order.backwards((FOREVER, b"")):
            given_so_far += entries
            assert given_so_far == [entry for entry in expected[::-1] if entry.time_us > order.reached_us]

    asyncio.run(check())
