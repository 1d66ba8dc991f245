"""Telling which of a device's publications a store has."""

from __future__ import annotations

from nearcast.nats.digest import content_hash
from nearcast.nats.stamp import message_time, mqtt_id, notification_id, parse_stamp, source_and_number
from nearcast.site.agent.mqtt_publications import StoredHashes


def hashes(payload: bytes, sequence: int) -> tuple[int, int]:
    made = mqtt_id("tokyo", "meter.1", 17, f"a-{sequence}")
    return content_hash(b"pub.meter.1", b"", payload), content_hash(b"pub.meter.1", made, payload)


def test_publications_of_equal_content_are_told_apart_by_their_number() -> None:
    first, second = hashes(b"21.5", 1), hashes(b"21.5", 2)
    store = StoredHashes([first[0]])
    assert store.take(first)
    assert not store.take(second), "the store has one, and the first is it"
    assert StoredHashes([first[0], second[1]]).take(second)
    store = StoredHashes([first[0], second[1]])
    assert store.take(second)
    assert store.take(first), "the second is there under its id"


def test_the_id_is_the_same_after_a_restart_and_is_not_numbered() -> None:
    made = mqtt_id("tokyo", "meter.1", 1_794_778_111_725_574, "6920b0c1-7")
    assert made == mqtt_id("tokyo", "meter.1", 1_794_778_111_725_574, "6920b0c1-7")
    assert message_time(made) == 1_794_778_111_725_574
    assert source_and_number(made) is None, "its numbers have gaps: nobody may wait for those"
    for one in (made, notification_id(made, 0)):
        stamp = parse_stamp(one)
        assert (stamp.publisher, stamp.home, stamp.published_us, stamp.number) == (
            "mqtt",
            "tokyo",
            1_794_778_111_725_574,
            0,
        )
    assert parse_stamp(made).source != parse_stamp(mqtt_id("tokyo", "meter.2", 1, "6920b0c1-7")).source
    assert parse_stamp(mqtt_id("tokyo", "gps.@car7", 1, "6920b0c1-7")).publisher == "car7", "the only one that may"
