"""The schedule's rules, played event by event in plain Python: the oracle of the vectorised prediction."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.lab.workloads import Schedule


def play_literally(schedule: Schedule) -> tuple[Counter[str], Counter[str]]:
    """Publications and deliveries per topic; an assertion fails when a client does what it cannot do."""
    published: Counter[str] = Counter()
    delivered: Counter[str] = Counter()
    subscribed: dict[str, set[str]] = {}
    listeners: dict[str, set[str]] = {}
    at: dict[str, str] = {}
    now = 0.0
    for event in schedule:
        assert event.time_s >= now, "out of order"
        now = event.time_s
        who = event.client
        if event.kind == "join":
            assert who not in at, f"{who} joins twice"
            assert event.site, f"{who} joins nowhere"
            at[who] = event.site
            subscribed[who] = set()
            continue
        assert who in at, f"{who} does {event.kind} before it joins"
        if event.kind == "move":
            assert event.site != at[who], f"{who} moves to where it is"
            at[who] = event.site
        elif event.kind == "leave":
            assert not subscribed[who], f"{who} leaves without unsubscribing"
            del at[who]
        else:
            assert event.topic, f"{who} does {event.kind} without a topic"
            if event.kind == "subscribe":
                assert event.topic not in subscribed[who], f"{who} subscribes twice to {event.topic}"
                subscribed[who].add(event.topic)
                listeners.setdefault(event.topic, set()).add(who)
            elif event.kind == "unsubscribe":
                subscribed[who].remove(event.topic)
                listeners[event.topic].remove(who)
            else:
                published[event.topic] += 1
                delivered[event.topic] += len(listeners.get(event.topic, ()))
    return published, delivered


def check_prediction(schedule: Schedule) -> None:
    """The schedule is playable and its prediction is that of the literal play."""
    published, delivered = play_literally(schedule)
    predicted = schedule.predicted()
    assert dict(zip(predicted.topics, predicted.published.tolist(), strict=True)) == {
        t: published[t] for t in schedule.topics
    }
    assert dict(zip(predicted.topics, predicted.delivered.tolist(), strict=True)) == {
        t: delivered[t] for t in schedule.topics
    }
    assert delivered.total() > 0
