"""The files of a ledger, sorted by what they tell about each publication."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["GUARD", "Event", "Key", "Ledger", "PublishedMessage", "matches", "read_ledger"]

Event = dict[str, Any]
Key = tuple[str, int]  # a publication: its publisher and number
SOON = 10.0  # s before a subscriber without a cursor was killed: what was on its way is gone with it
GUARD = 3.0  # s after a subscription began: interest has not spread everywhere yet


@dataclass
class PublishedMessage:
    """One publication and all that is known of it."""

    key: Key
    topic: str
    at: float
    count: int
    path: str
    home: str
    fields: dict[str, Any]
    kept: bool = False
    receipt: float | None = None
    failed: bool = False
    processed: list[Event] = field(default_factory=list)
    stored: Counter[str] = field(default_factory=Counter)
    dead: bool = False
    delivered: defaultdict[tuple[str, int], list[Event]] = field(default_factory=lambda: defaultdict(list))


@dataclass
class Ledger:
    """All events of a run, by what they are about."""

    topics: list[Event] = field(default_factory=list)
    phases: list[Event] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)
    publications: dict[Key, PublishedMessage] = field(default_factory=dict)
    subscriptions: list[Event] = field(default_factory=list)
    gone: list[Event] = field(default_factory=list)
    deliveries: list[Event] = field(default_factory=list)
    stored: list[Event] = field(default_factory=list)
    stores_read: set[str] = field(default_factory=set)
    replicas: dict[str, list[str]] = field(default_factory=dict)
    history: defaultdict[tuple[str, str], set[Key]] = field(default_factory=lambda: defaultdict(set))
    history_read: list[Event] = field(default_factory=list)
    marks: list[Event] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    strangers: int = 0
    torn_lines: int = 0

    def topic(self, name: str) -> Event:
        """What was promised for a topic."""
        return next((topic for topic in self.topics if matches(topic["name"], name)), {"name": name})

    def replicas_of(self, topic: Event) -> list[str]:
        """The sites that keep a topic at the end; those that were asked for when nobody could be asked."""
        return list(self.replicas.get(topic["name"]) or topic.get("replicas", ()))

    def faults(self) -> list[Event]:
        """The faults, in order."""
        return [phase for phase in self.phases if phase["phase"] == "fault"]

    def durable(self, publication: PublishedMessage) -> bool:
        """Whether its topic has a write quorum."""
        return bool(self.topic(publication.topic).get("quorum"))

    def judged(self) -> Iterator[PublishedMessage]:
        """What was acknowledged for durable topics, or kept by a publisher's spool, after the warm-up."""
        start = next((phase["at"] for phase in self.phases if phase["phase"] == "steady"), 0.0)
        for publication in self.publications.values():
            owed = publication.receipt is not None or publication.kept
            if owed and publication.at >= start and self.durable(publication):
                yield publication

    def subscribers(self, publication: PublishedMessage) -> set[str]:
        """Who must get it: those that had subscribed before it was published, and were not killed soon after."""
        return {
            subscription["subscriber"]
            for subscription in self.subscriptions
            if subscription["at"] + GUARD <= publication.at
            and _wanted(subscription, publication)
            and not any(
                gone["subscriber"] == subscription["subscriber"]
                and subscription["at"] < gone["at"] < publication.at + SOON
                for gone in self.gone
            )
        }


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern of topics stands for a topic."""
    levels, names = pattern.split("."), topic.split(".")
    for position, level in enumerate(levels):
        if level == ">":
            return len(names) > position
        if position >= len(names) or level not in ("*", names[position]):
            return False
    return len(levels) == len(names)


def _wanted(subscription: Event, publication: PublishedMessage) -> bool:
    """Whether a subscription is for this: by its topic, and for a channel by the values of its parameters."""
    values = subscription.get("values", {})
    return matches(subscription["topic"], publication.topic) and all(
        publication.fields.get(name) == value for name, value in values.items()
    )


def read_events(folder: Path) -> Iterator[Event | None]:
    """All lines of all files; nothing for a line that a kill has torn."""
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines:
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:
                    yield None


def read_ledger(folder: Path) -> Ledger:
    """Sort the events of a run. Publications first: other processes may have written about them in other files."""
    ledger, later = Ledger(), []
    for event in read_events(folder):
        if event is None:
            ledger.torn_lines += 1
        elif event["event"] == "published":
            key = (event["publisher"], event["n"])
            told = (event["topic"], event["at"], event["count"], event["path"], event["home"])
            ledger.publications[key] = PublishedMessage(key, *told, event.get("fields", {}))
        else:
            later.append(event)
    for event in sorted(later, key=lambda event: event["at"]):
        _take(ledger, event)
    return ledger


def _take(ledger: Ledger, event: Event) -> None:
    kind = event["event"]
    lists = {
        "gone": ledger.gone,
        "topic": ledger.topics,
        "phase": ledger.phases,
        "subscribed": ledger.subscriptions,
        "mark": ledger.marks,
        "history read": ledger.history_read,
    }
    if kind in lists:
        lists[kind].append(event)
    elif kind == "client":
        ledger.nodes[event["name"]] = event["node"]
    elif kind == "store read":
        ledger.stores_read.add(event["site"])
    elif kind == "replicas":
        ledger.replicas[event["topic"]] = event["replicas"]
    elif kind in ("store not read", "history not read"):
        ledger.unread.append(f"{event['site']} {event.get('topic', '')}: {event['reason']}")
    elif "publisher" in event:
        found = ledger.publications.get((event["publisher"], event["n"]))
        if found is None:
            ledger.strangers += 1
        else:
            _take_about(ledger, found, event)


def _take_about(ledger: Ledger, publication: PublishedMessage, event: Event) -> None:
    kind = event["event"]
    if kind == "receipt":
        publication.receipt = event["at"]
    elif kind == "kept":
        publication.kept = True
    elif kind == "failed":
        publication.failed = True
    elif kind == "processed":
        publication.processed.append(event)
    elif kind == "dead":
        publication.dead = True
    elif kind == "delivered":
        publication.delivered[event["subscriber"], event["part"]].append(event)
        ledger.deliveries.append(event)
    elif kind == "history":
        ledger.history[event["site"], event["topic"]].add(publication.key)
    elif kind == "stored":
        ledger.stored.append(event)
        if event["kind"] == "publication":
            publication.stored[event["site"]] += 1
        elif event["kind"] == "dead letter":
            publication.dead = True
