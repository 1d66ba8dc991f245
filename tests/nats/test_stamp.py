"""The stamp: one header that carries all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.message import Message
from nearcast.nats.stamp import (
    attempt_of,
    dead_letter_block,
    dead_letter_origin,
    given_up,
    header_block,
    is_forged,
    is_late,
    late_block,
    new_incarnation,
    notification_id,
    number_field,
    parse_stamp,
    publication_key,
    reason_of,
    source_and_number,
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


@given(st.integers(2, 10**9), st.integers(1, 10**6), st.integers(0, 10**6))
def test_an_id_says_which_publications_were_given_up_before_it(number: int, back: int, more: int) -> None:
    first = max(1, number - back)
    last = min(number - 1, first + more)
    message_id = f"car~a1:tokyo:17:{number_field(number, first, last)}".encode()
    assert given_up(message_id) == (first, last)
    assert source_and_number(message_id) == ("car~a1", number)
    assert publication_key(message_id) == (b"car~a1", number)
    assert parse_stamp(notification_id(message_id, 3)).number == number
    assert publication_key(notification_id(message_id, 3)) is None, "a notification is no publication"


@given(st.from_regex(r"[0-9.:-]{0,30}", fullmatch=True) | st.just("9" * 5000) | st.just("7-8.1") | st.just("7-3.4"))
def test_what_others_write_in_place_of_a_number_is_taken_for_one_or_for_none(field: str) -> None:
    message_id = f"car~a1:tokyo:17:{field}".encode()
    publication_key(message_id), source_and_number(message_id), parse_stamp(message_id)
    found = given_up(message_id)
    assert found is None or 0 < found[0] <= found[1] < parse_stamp(message_id).number


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


def test_numbers_beyond_what_may_travel_are_none() -> None:
    """Marks with such a number could not be sent, or not be read, and all others with them."""
    for number in (b"9" * 16, b"9" * 5000):
        message_id = b"car~a1:tokyo:1700000000000000:" + number
        assert source_and_number(message_id) is None
        assert publication_key(message_id) is None
        assert parse_stamp(message_id).number == 0
    assert parse_stamp(b"car~a1:tokyo:%b:7" % (b"9" * 5000)).published_us == 0
    assert attempt_of(b"NATS/1.0\r\nNearcast-Late: %b\r\n\r\n" % (b"9" * 5000)) == 1
    assert dead_letter_origin(b"i;d" + b"9" * 5000) == (b"i;d" + b"9" * 5000, 1)


@given(st.binary(max_size=60))
def test_a_block_that_a_publisher_did_not_end_is_read_to_its_end(text: bytes) -> None:
    for field in (b"Nats-Msg-Id: ", b"Nearcast-Reason: ", b"Nearcast-Late: "):
        block = b"NATS/1.0\r\n" + field + text
        assert isinstance(stamp_of(block), bytes)
        assert isinstance(reason_of(block), str)
        assert attempt_of(block) >= 0


def test_an_id_is_1024_bytes_at_most() -> None:
    """Pages of history and cursors carry ids, and could not be read with a longer one."""
    assert len(stamp_of(header_block(b"i" * 1024))) == 1024
    assert stamp_of(header_block(b"i" * 1025)) == b""


def test_a_time_that_no_calendar_has_is_none() -> None:
    message = Message("gps", b"", header_block(b"car~a1:tokyo:999999999999999999:7"))
    assert message.published is None
