"""Flows from a publisher to a subscriber: whether they went on beside a fault, and how soon after it."""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from nearcast.lab.chaos.checker.evidence import Event, Ledger, PublishedMessage

__all__ = ["Flow", "flows", "longest_pause", "receipt_pauses"]


@dataclass
class Flow:
    """From one publisher to one subscriber: when it published, when what was published came, and where it passed."""

    publisher: str
    subscriber: str
    topic: str
    published: list[float] = field(default_factory=list)
    delivered: list[tuple[float, float]] = field(default_factory=list)  # when it came, when it was published
    places: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)

    def places_at(self, at: float) -> set[str] | None:
        """Where the last message before a time had passed."""
        position = bisect.bisect(self.places, at, key=lambda place: place[0])
        return set(self.places[position - 1][1]) if position else None


def flows(ledger: Ledger) -> list[Flow]:
    """Every publisher with every subscriber that was to get what it published."""
    found: dict[tuple[str, str, str], Flow] = {}
    ordered = sorted(ledger.publications.values(), key=lambda publication: publication.at)
    for publication in ordered:
        publisher = publication.key[0]
        for subscriber in sorted(ledger.subscribers(publication)):
            name = (publisher, subscriber, publication.topic)
            flow = found.setdefault(name, Flow(*name))
            flow.published.append(publication.at)
            came = publication.delivered.get((subscriber, 0))
            if not came:
                continue
            flow.delivered.append((came[0]["at"], publication.at))
            nodes = (ledger.nodes.get(publisher, ""), ledger.nodes.get(subscriber, ""))
            sites = (publication.home, came[0]["home"], *(event["site"] for event in publication.processed))
            sites += tuple(ledger.topic(publication.topic).get("places", ()))
            flow.places.append((came[0]["at"], tuple({*nodes, *sites} - {""})))
    for flow in found.values():
        flow.delivered.sort()
        flow.places.sort(key=lambda place: place[0])
    return list(found.values())


def receipt_pauses(ledger: Ledger, fault: Event) -> dict[str, float]:
    """The longest time without a receipt, of publishers whose home is not touched, of topics with enough stores."""
    away = set(fault["touches"]) | set(fault["stores"])
    published: defaultdict[tuple[str, str], list[PublishedMessage]] = defaultdict(list)
    for publication in ledger.publications.values():
        published[publication.key[0], publication.topic].append(publication)
    pauses = {}
    for (publisher, name), publications in published.items():
        topic = ledger.topic(name)
        before = [publication for publication in publications if publication.at < fault["at"]]
        if not topic.get("quorum") or not before or topic.get("anonymous"):
            continue
        places = {ledger.nodes.get(publisher, ""), max(before, key=lambda publication: publication.at).home}
        if places & set(fault["touches"]) or len(set(topic["replicas"]) - away) < topic["quorum"]:
            continue
        receipts = [publication.receipt for publication in publications if publication.receipt is not None]
        sent = [publication.at for publication in publications]
        pauses[publisher] = longest_pause(receipts, sent, fault["at"], fault["until"])
    return pauses


def longest_pause(came: Iterable[float], published: Iterable[float], start: float, end: float) -> float:
    """The longest time within a fault in which nothing came although something was published."""
    edges = [start, *sorted(at for at in came if start < at < end), end]
    sent = sorted(published)
    pauses = [
        after - before
        for before, after in itertools.pairwise(edges)
        if bisect.bisect(sent, after) > bisect.bisect(sent, before)
    ]
    return max(pauses, default=0.0)
