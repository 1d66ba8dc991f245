"""Stored messages are read from what a direct get answers."""

from __future__ import annotations

import pytest

from nearcast.nats.streams import FIRST_STORED, original_headers, parse_entry

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
