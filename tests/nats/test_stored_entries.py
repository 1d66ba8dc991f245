"""Stored messages are read from what a direct get answers."""

from __future__ import annotations

import pytest

from nearcast.nats.arrow_entries import entry_columns
from nearcast.nats.streams import FIRST_STORED, RawBatch, original_headers, parse_entry

ADDED = (
    b"Nats-Stream: log\r\nNats-Subject: pub.log\r\nNats-Sequence: 7\r\nNats-Time-Stamp: 2026-11-15T20:00:00.5Z\r\n"
    b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 6\r\n\r\n"
)
STORED_US = 1_794_772_800_500_000


def test_the_fields_that_the_store_adds_are_read():
    entry = parse_entry(b"x", b"NATS/1.0\r\nNats-Msg-Id: p~a:tokyo:1794772800000000:1\r\n" + ADDED)
    assert entry == (7, "pub.log", STORED_US, b"p~a:tokyo:1794772800000000:1", b"x")
    assert entry.time_us == 1_794_772_800_000_000


def test_a_message_without_an_id_has_the_time_at_which_it_was_stored():
    assert parse_entry(b"x", b"NATS/1.0\r\n" + ADDED).time_us == STORED_US


@pytest.mark.parametrize(("said", "stored_us"), [(b"5", 5), (b"tomorrow", STORED_US), (b"9" * 40, STORED_US)])
def test_a_message_from_another_replica_was_stored_when_that_one_did(said: bytes, stored_us: int):
    headers = b"NATS/1.0\r\n%b %b\r\n%b" % (FIRST_STORED, said, ADDED)
    assert parse_entry(b"x", headers).stored_us == stored_us


def test_the_headers_of_the_publisher_are_given_back():
    own = b"NATS/1.0\r\nNats-Msg-Id: i\r\nNearcast-Reason: none\r\n"
    assert original_headers(own + ADDED) == own + b"\r\n"
    assert original_headers(b"NATS/1.0\r\n" + ADDED) == b""


# What a publisher may write: a broker looks into no header block.
FORGED = b"Nats-Stream: x\r\nNats-Subject: pub.other\r\nNats-Sequence: %b\r\nNats-Time-Stamp: never\r\n"
HOSTILE = [
    (b"NATS/1.0\r\n" + FORGED % b"1", b""),
    (b"NATS/1.0\r\n" + FORGED % b"none", b""),
    (b"NATS/1.0\r\n" + FORGED % (b"9" * 5000), b""),
    (b"NATS/1.0\r\n%b 7" % FIRST_STORED, b""),
    (b"NATS/1.0\r\nNats-Msg-Id: i", b"i"),
    (b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n", b"\xff"),
    (b"NATS/1.0\r\nNats-Msg-Id: %b\r\n" % (b"i" * 5000), b""),
    (b"NATS/1.0 204 EOB", b""),
    (b"\xff\x00", b""),
]


@pytest.mark.parametrize(("own", "message_id"), HOSTILE)
def test_what_a_publisher_writes_into_its_headers_is_not_taken_for_what_the_store_adds(own: bytes, message_id: bytes):
    """One such message ended the reading of its stream for good: index, catch-up, repair, history, datasets."""
    batch = RawBatch()
    batch.take(b"x", own + ADDED)
    assert not batch.done.is_set(), "a status of the publisher's is none of the store's"
    (entry,) = batch.entries()
    assert (entry.sequence, entry.subject, entry.id) == (7, "pub.log", message_id)
    assert original_headers(own + ADDED).startswith(own)
    columns = entry_columns(batch)
    assert (columns["sequence"].to_pylist(), columns["subject"].to_pylist()) == ([7], ["pub.log"])


def test_a_subject_that_is_no_text_is_read_as_one():
    batch = RawBatch()
    batch.take(b"x", b"NATS/1.0\r\n" + ADDED.replace(b"pub.log", b"pub.\xff\x0clog"))
    assert batch.entries()[0].subject == "pub.\\xff\x0clog"
    assert entry_columns(batch)["subject"].to_pylist() == ["pub.\\xff\x0clog"]
