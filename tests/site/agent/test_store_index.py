"""The index knows what a stream holds by message time, whatever the order it was stored in, through restarts."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.nats.digest import add_digests
from nearcast.site.agent.store_index import BUCKET_US, IndexedMessage, StoreIndex, StreamIndex, bucket_of

# Times of a few buckets, so that they mix; batches of a stream in the order of its sequences.
TIMES = st.integers(0, 6 * BUCKET_US)
BATCHES = st.lists(st.lists(st.tuples(TIMES, st.integers(0, 2**64 - 1)), max_size=20), max_size=6)
NOT_QUIET = (0.0, 0.0)
ALL = range(1 << 40)  # buckets


def fill(index: StreamIndex, batches, step: int = 1) -> list[IndexedMessage]:
    stored, sequence = [], index.position
    for batch in batches:
        messages = []
        for time_us, number in batch:
            sequence += step
            messages.append(IndexedMessage(sequence, time_us, number))
        index.add(messages, now=0.0)
        stored += messages
    return stored


def check(index: StreamIndex, stored: list[IndexedMessage]) -> None:
    buckets = {bucket_of(message.time_us) for message in stored}
    digests = index.digests(ALL, 1000, float("-inf"), NOT_QUIET)
    assert [one.bucket for one in digests] == sorted(buckets)
    for bucket, count, digest in digests:
        inside = [message for message in stored if bucket_of(message.time_us) == bucket]
        assert count == len(inside)
        assert digest == reduce(add_digests, (message.hash for message in inside), 0)
        runs = index.runs(bucket, bucket + 1, 1)
        for message in inside:
            holding = [run for run in runs if run.first <= message.sequence <= run.last]
            assert len(holding) == 1, "each message is in one run of its bucket"
            assert holding[0].low_us <= message.time_us <= holding[0].high_us


@given(BATCHES, st.integers(1, 100))
def test_it_counts_each_message_in_its_bucket_and_finds_it_in_one_run(batches, step):
    index = StoreIndex(None).stream("s")
    check(index, fill(index, batches, step))


@settings(max_examples=30)
@given(first=BATCHES, second=BATCHES)
def test_it_goes_on_after_a_restart(tmp_path_factory, first, second):
    file = tmp_path_factory.mktemp("index") / "index.sqlite"
    store = StoreIndex(file)
    index = store.stream("s")
    stored = fill(index, first)
    index.flush()
    store.close()
    store = StoreIndex(file)
    index = store.stream("s")
    assert index.position == (stored[-1].sequence if stored else 0)
    check(index, stored + fill(index, second))
    store.close()


@given(BATCHES, st.integers(0, 100))
def test_what_limits_removed_is_below_the_floor_and_the_rest_is_exact(batches, removed):
    index = StoreIndex(None).stream("s")
    stored = fill(index, batches)
    index.removed(removed + 1, now=100.0)
    left = [message for message in stored if message.sequence > removed]
    assert all(bucket_of(m.time_us) < index.floor for m in stored if m.sequence <= removed)
    for bucket, count, _ in index.digests(range(index.floor, ALL.stop), 1000, float("-inf"), NOT_QUIET):
        assert count == sum(bucket_of(message.time_us) == bucket for message in left)
    runs = index.runs(0, 1 << 40, 1 << 20)
    for message in left:
        assert any(run.first <= message.sequence <= run.last for run in runs)


def test_a_message_of_the_future_that_limits_removed_does_not_keep_the_rest_from_being_compared():
    """Nothing of the topic, or of the whole family, was repaired any more: all was below the floor."""
    index = StoreIndex(None).stream("s")
    fill(index, [[(5, 1), ((1 << 53) - 1, 2), (BUCKET_US, 3), (2 * BUCKET_US, 4)]])
    index.removed(3, now=20.0)
    assert index.floor == 1
    assert [one.bucket for one in index.digests(ALL, 10, float("-inf"), NOT_QUIET)] == [1, 2]


def test_buckets_that_changed_in_a_time_can_be_asked_for():
    index = StoreIndex(None).stream("s")
    index.add([IndexedMessage(1, 5, 1)], now=100.0)
    index.add([IndexedMessage(2, 5 + BUCKET_US, 1)], now=200.0)
    assert [one.bucket for one in index.digests(ALL, 10, 150.0, NOT_QUIET)] == [1]
    assert [one.bucket for one in index.digests(ALL, 10, 0.0, (199.0, 201.0))] == [0]


def test_a_rebuilt_index_takes_the_place_of_the_other_when_it_is_complete():
    store = StoreIndex(None)
    index = store.stream("s")
    fill(index, [[(1, 1), (2, 2)]])
    fresh = store.rebuilt("s")
    stored = fill(fresh, [[(1, 1)]])
    assert store.stream("s").id == index.id
    store.replace(fresh)
    assert store.stream("s").id == fresh.id
    check(store.stream("s"), stored)


def test_a_damaged_file_is_made_anew(tmp_path: Path):
    file = tmp_path / "index.sqlite"
    file.write_bytes(b"this is no database" * 500)
    store = StoreIndex(file)
    assert store.stream("s").position == 0
    store.close()
