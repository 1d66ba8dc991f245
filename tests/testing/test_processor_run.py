"""Processors run without servers, as a worker would run them."""

from __future__ import annotations

import math
import time

import msgspec
import pytest

from nearcast import Message, ProcessorError, processor
from nearcast.testing import run_processor


class Reading(msgspec.Struct):
    speed: float


@processor("speed.*", spool=2, type=Reading)
def speeding(message: Message[Reading], spool):
    if message.data.speed > 50:
        yield {"too_fast": message.data.speed, "before": [before.data.speed for before in spool]}


@processor("numbers")
async def doubled(message, spool):
    return 2 * message.data


@processor("numbers")
async def counted(message, spool):
    for n in range(message.data):
        yield n


@processor("state.a")
@processor("state.b")
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def process(self, message, spool):
        self.count += 1
        return {"count": self.count, "spool": len(spool)}


def notified(outcomes) -> list:
    return [[notification.data for notification in outcome.notifications] for outcome in outcomes]


def test_notifications_spool_and_dead_letters() -> None:
    outcomes = run_processor(
        speeding, [{"speed": 40}, {"speed": "fast"}, {"speed": 60}, b"no JSON", {"speed": 70}], topic="speed.a9"
    )
    assert notified(outcomes) == [
        [],
        [],
        [{"too_fast": 60.0, "before": [40.0]}],
        [],
        [{"too_fast": 70.0, "before": [60.0]}],
    ]
    bad, unreadable = outcomes[1], outcomes[3]
    assert bad.reason.startswith("PayloadError: message test:test:")
    assert bad.reason.endswith("of topic speed.a9: Expected `float`, got `str` - at `$.speed`")
    assert bad.message.reason == bad.reason
    assert "JSON is malformed" in unreadable.reason
    notification = outcomes[2].notifications[0]
    assert (notification.topic, notification.id) == ("speed.a9", f"{outcomes[2].message.id};0")


async def test_async_processors_run_inside_a_running_event_loop_too() -> None:
    assert notified(run_processor(doubled, [1, 2])) == [[2], [4]]
    assert notified(run_processor(counted, [0, 2])) == [[], [0, 1]]


def test_each_topic_has_its_spool_and_each_pattern_its_object() -> None:
    messages = [Message(topic, b"1") for topic in ("state.a", "state.b", "state.a")]
    assert notified(run_processor(Counter, messages)) == [
        [{"count": 1, "spool": 0}],
        [{"count": 1, "spool": 0}],
        [{"count": 2, "spool": 1}],
    ]


def test_what_a_worker_would_end_fails_here() -> None:
    @processor("slow", timeout=0.01)
    def slow(message, spool):
        time.sleep(0.02)

    @processor("wrong")
    def wrong(message, spool):
        raise ValueError("on purpose")

    @processor("outside")
    def without_a_number(message, spool):
        return {"kmh": math.inf}

    assert [outcome.reason for outcome in run_processor(without_a_number, [1])] == [
        "InputError: kmh is inf; JSON has no NaN or infinity: leave the field out or send a text"
    ]
    assert [outcome.reason for outcome in run_processor(slow, [1])] == ["took longer than 0.01 s"]
    assert [outcome.reason for outcome in run_processor(wrong, [1])] == ["ValueError: on purpose"]


def test_mistakes_are_named() -> None:
    with pytest.raises(ProcessorError, match="'sorted' is no processor"):
        run_processor(sorted, [1])
    with pytest.raises(ProcessorError, match="say which one with `topic=`"):
        run_processor(speeding, [1])
    with pytest.raises(ProcessorError, match="no processor handles it"):
        run_processor(speeding, [1], topic="elsewhere")
