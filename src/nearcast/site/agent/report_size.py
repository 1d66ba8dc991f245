"""A site's report that its broker takes, whatever clients made of it: a site that is silent is taken for lost."""

from __future__ import annotations

import msgspec

from nearcast.protocol.reports import SiteReport

__all__ = ["fitting_report"]

_MOST_ARRIVALS = 5_000  # the others are in the next report


def fitting_report(report: SiteReport, largest: int) -> tuple[SiteReport, bytes]:
    """The report and its bytes, at most so many. Topics with fewest clients are left out of one that is too large."""
    report = msgspec.structs.replace(report, arrived=report.arrived[:_MOST_ARRIVALS], gone=report.gone[:_MOST_ARRIVALS])
    body = msgspec.msgpack.encode(report)
    by_clients = sorted(report.topics, key=lambda topic: (-topic.producers - topic.consumers, topic.topic))
    while len(body) > largest and by_clients:
        by_clients = by_clients[: len(by_clients) // 2]
        report = msgspec.structs.replace(report, topics=sorted(by_clients, key=lambda topic: topic.topic))
        body = msgspec.msgpack.encode(report)
    return report, body
