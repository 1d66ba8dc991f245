"""The stamp: one header that carries all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.nats.stamp import (
    attempt_of,
    dead_letter_block,
    dead_letter_origin,
    header_block,
    is_forged,
    is_late,
    late_block,
    new_incarnation,
    notification_id,
    parse_stamp,
    reason_of,
    stamp_of,
)
from nearcast.nats.subjects import stream_name, topic_of

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)


@given(names, names, st.integers(1, 2**60), st.integers(0, 10**9), st.integers(0, 99))
def test_what_goes_in_comes_out(publisher: str, home: str, us: int, n: int, k: int) -> None:
    incarnation = new_incarnation()
    message_id = f"{publisher}~{incarnation}:{home}:{us}:{n}".encode()
    for one in (message_id, notification_id(message_id, k)):
        assert stamp_of(header_block(one)) == one
        stamp = parse_stamp(one)
        assert (stamp.publisher, stamp.home, stamp.published_us, stamp.number) == (publisher, home, us, n)
        assert stamp.source == f"{publisher}~{incarnation}"


@given(st.binary(max_size=60))
def test_any_bytes_of_others_are_an_id_at_most(text: bytes) -> None:
    parse_stamp(text)
    assert stamp_of(b"NATS/1.0\r\nFoo: bar\r\n\r\n") == b""


def test_the_id_is_found_behind_other_fields() -> None:
    assert stamp_of(b"NATS/1.0\r\nNats-Stream: x\r\nNats-Msg-Id: a:b:1:2\r\n\r\n") == b"a:b:1:2"


@given(st.sampled_from([b"", b"p~abcde:tokyo:1:2", b"p~abcde:tokyo:1:2;3"]), st.integers(1, 1000))
def test_a_late_message_keeps_its_id_and_says_the_attempt(message_id: bytes, attempt: int) -> None:
    block = late_block(message_id, attempt)
    assert (stamp_of(block), attempt_of(block)) == (message_id, attempt)
    assert attempt_of(header_block(message_id)) == 0


def test_only_what_was_sent_again_is_late() -> None:
    message_id = b"car~a1:tokyo:1700000000000000:7"
    assert is_late(late_block(message_id, 1), message_id)
    assert not is_late(header_block(message_id), message_id)
    assert not is_late(b"NATS/1.0\r\nOther: field\r\n\r\n", b"")


@given(st.text(max_size=700), st.integers(1, 99))
def test_a_dead_letter_says_why_in_one_line_and_after_how_many_attempts(reason: str, attempts: int) -> None:
    block = dead_letter_block(b"a:b:1:2", reason, attempts)
    assert dead_letter_origin(stamp_of(block)) == (b"a:b:1:2", attempts)
    assert parse_stamp(stamp_of(block)).published_us == 1
    assert "\n" not in reason_of(block)
    assert block.count(b"\r\n") == 4


@given(st.lists(st.sampled_from(["a", "B", "*", ">", "é", "x_y", "_2e"]), min_size=1).map(".".join))
def test_stream_names_tell_topics_apart(topic: str) -> None:
    assert set(stream_name(topic)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    for other in ("a.b", "a_b", "a_2eb", "a.*", "a.>"):
        assert (stream_name(topic) == stream_name(other)) == (topic == other)


def test_topics_come_back_from_subjects() -> None:
    from nearcast.nats import subjects

    for make in (subjects.publications, subjects.copies, subjects.notifications, subjects.dead_letters):
        assert topic_of(make("gps.north")) == "gps.north"


def test_the_publisher_that_a_topic_names_is_the_only_one() -> None:
    own, other = b"car7~abcde:edge:1700000000000000:1", b"car8~abcde:edge:1700000000000000:1"
    for topic in ("gps.@car7", "@car7.gps.north"):
        assert not is_forged(topic, own)
        assert is_forged(topic, other)
        assert is_forged(topic, other + b";3"), "it looks like a notification"
        assert not is_forged(topic, b""), "an MQTT device sends none"
    assert not is_forged("gps.car7", other), "this topic names nobody"
    assert not is_forged("gps.car7@home", other), "a level begins with @, or names nobody"
