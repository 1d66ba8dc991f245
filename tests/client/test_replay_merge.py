"""Merging past and live messages, without a network."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.client.replay_merge import ReplayMerge
from nearcast.message import Message
from nearcast.nats.stamp import header_block


def message(publisher: int, n: int) -> Message:
    return Message("t", b"", header_block(b"p%d:home:1:%d" % (publisher, n)))


@given(st.data())
def test_everything_is_delivered_once_and_in_each_publishers_order(data: st.DataObject) -> None:
    """Whatever the live subscription missed while it spread to other sites, and however little is held."""
    order = data.draw(st.lists(st.integers(0, 3), max_size=40), label="who publishes, in the store's order")
    stream = [(publisher, order[:k].count(publisher)) for k, publisher in enumerate(order)]
    first_end = data.draw(st.integers(0, len(stream)), label="stored when the end was first reached")
    first_look = data.draw(st.integers(first_end, len(stream)), label="stored when the subscription had spread")
    # Until then each publisher's site may not have known of the subscription for its first messages.
    live_from = {p: data.draw(st.integers(0, 12), label=f"live from, {p}") for p in range(4)}
    merge = ReplayMerge(held=data.draw(st.integers(1, 60), label="held"))
    delivered: list[str] = []
    looks = sorted(data.draw(st.lists(st.integers(first_look, len(stream)), max_size=5), label="later looks"))
    read = sent = 0
    for end in (first_end, first_look, *looks, len(stream)):
        for publisher, n in stream[sent:end]:
            if n >= live_from[publisher] or sent >= first_look:
                merge.live(message(publisher, n))
            sent += 1
        delivered += [message(*m).id for m in stream[read:sent] if merge.past(message(*m))]
        read = sent
        if end == first_end:
            merge.caught_up()
        elif merge.joined:
            break
    delivered += [m.id for m in merge.finish()]
    delivered += [message(*m).id for m in stream[sent:]]  # from here on everything comes live
    assert len(set(delivered)) == len(delivered), "no duplicate"
    assert set(delivered) == {message(*m).id for m in stream}, "no gap"
    for publisher in range(4):
        numbers = [int(i.rpartition(":")[2]) for i in delivered if i.startswith(f"p{publisher}:")]
        assert numbers == sorted(numbers), "in order"


@given(st.integers(1, 8), st.integers(1, 30))
def test_messages_that_came_live_after_the_last_look_are_kept(held: int, later: int) -> None:
    merge = ReplayMerge(held)
    merge.caught_up()
    assert merge.past(message(1, 0))
    for n in range(later + 1):
        merge.live(message(1, n))
    if merge.joined:
        assert [m.id for m in merge.finish()] == [message(1, n).id for n in range(1, later + 1)]
    else:
        assert later >= held, "only what no longer fits makes it read on"


def test_it_is_not_joined_before_the_end_of_the_past_was_seen() -> None:
    merge = ReplayMerge(10)
    assert not merge.joined
    merge.caught_up()
    assert merge.joined, "nobody published meanwhile"


def test_a_publisher_whose_last_message_did_not_come_live_keeps_it_open() -> None:
    merge = ReplayMerge(10)
    merge.caught_up()
    assert merge.past(message(1, 1))
    assert not merge.joined
    merge.live(message(1, 1))
    assert merge.joined
    merge.live(message(1, 2))
    assert [m.id for m in merge.finish()] == [message(1, 2).id]


def test_live_messages_beyond_what_is_held_are_read_from_the_store() -> None:
    merge = ReplayMerge(held=2)
    for n in range(5):
        merge.live(message(1, n))
    merge.caught_up()
    for n in range(3):
        assert merge.past(message(1, n))
    assert not merge.joined, "message 2 is no longer held"
    assert merge.past(message(1, 3))
    assert merge.joined
    assert [m.id for m in merge.finish()] == [message(1, 4).id]
