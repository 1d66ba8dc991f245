"""What clients tell their home and sites tell the coordinator, each period.

A site's report has the same few figures for each topic, whatever the number of its clients.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from nearcast.coordinates import Coordinate
from nearcast.domain.ranges import (
    Centroid,
    Count,
    Figure,
    Histogram,
    Latitude,
    Longitude,
    Milliseconds,
    Name,
    ReportedTopic,
    Seconds,
    Sequence,
    Term,
    Text,
    TopicPattern,
)
from nearcast.protocol.control import MOST_SITES, MOST_TOPICS
from nearcast.protocol.registration import MOST_OF_A_CLIENT, RoundTrips

__all__ = [
    "MOST_CLIENTS",
    "BrokerFigures",
    "ClientReport",
    "ClientTopic",
    "ReportedPosition",
    "SiteReport",
    "SiteWay",
    "TopicLag",
    "TopicReport",
    "WorkerFigures",
    "WorkerTopic",
    "channel_row",
    "is_channel",
]


Position = tuple[Latitude, Longitude]
MOST_CLIENTS = 100_000
"""Clients that one site reports."""


def channel_row(channel: str) -> str:
    """A channel's name among the topics of a report; no topic has a space in its name."""
    return f"channel {channel}"


def is_channel(topic: str) -> bool:
    """Whether a name in a report is that of a channel."""
    return topic.startswith("channel ")


class ClientTopic(msgspec.Struct, frozen=True, array_like=True):
    """A client's traffic of one topic (or pattern it subscribes to) since its last report; latencies are sampled."""

    topic: ReportedTopic
    publishes: bool = False
    subscribes: bool = False
    messages_out: Count = 0
    bytes_out: Count = 0
    messages_in: Count = 0
    bytes_in: Count = 0
    latency: Histogram = {}


class ClientReport(msgspec.Struct, frozen=True):
    """From a client to the agent of its home.

    round_trips: measured, to a bounded number of sites, its home among them. moved: the way to its home has changed
    just now, or it has just come; the site tells the coordinator at once. 0 seconds: its last report here.
    position: latitude and longitude, for maps; nothing is decided by it.
    """

    client: Name
    seconds: Annotated[float, Meta(ge=-1, le=1e9)]
    coordinate: Coordinate | None = None
    topics: Annotated[list[ClientTopic], Meta(max_length=MOST_OF_A_CLIENT)] = []
    round_trips: RoundTrips = {}
    moved: bool = False
    position: Position | None = None


class ReportedPosition(msgspec.Struct, frozen=True):
    """The part of a client's report that a map needs."""

    client: Name
    seconds: Annotated[float, Meta(ge=-1, le=1e9)]
    position: Position | None = None


class SiteWay(msgspec.Struct, frozen=True, array_like=True):
    """How far the clients of a topic are from a site, one way: the worst and the mean of them, ms."""

    site: Name
    worst: Milliseconds
    mean: Milliseconds


Ways = Annotated[list[SiteWay], Meta(max_length=100)]


class TopicReport(msgspec.Struct, frozen=True, array_like=True):
    """One topic at one site, in constant size.

    Centroids are of the producers' and consumers' positions. Deviations are the largest distance of one of them from
    its centroid, heights included; legs the largest distance to the topic's managing site: both are estimated round
    trips. Ways are measured, one way, to the nearest
    of the sites that the clients measured, at most eight. Rates are per second.
    p90_ms is measured: publication to receipt, of so many samples.
    """

    topic: ReportedTopic
    producers: Figure  # counts, but of one size on the wire
    consumers: Figure
    producer_centroid: Centroid
    consumer_centroid: Centroid
    producer_deviation: Figure
    consumer_deviation: Figure
    producer_leg: Figure
    consumer_leg: Figure
    producer_ways: Ways
    consumer_ways: Ways
    messages_out: Figure
    bytes_out: Figure
    messages_in: Figure
    bytes_in: Figure
    samples: Figure
    p90_ms: Milliseconds


class WorkerTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic in a worker: rate, milliseconds of processing per message, p90 from arrival at the worker to outcome.

    dead_letters, deferred: since the worker took the topic; deferred ones had no room, and come again from a store.
    """

    topic: TopicPattern
    rate: Figure
    processing_ms: Figure
    waiting: Count
    p90_ms: Milliseconds
    dead_letters: Count = 0
    deferred: Count = 0


class WorkerFigures(msgspec.Struct, frozen=True, array_like=True):
    """A worker: the share of its time it was busy, its topics, and counts since it started (`WorkerStats`)."""

    worker: Name
    busy: Figure
    topics: Annotated[list[WorkerTopic], Meta(max_length=MOST_TOPICS)] = []
    late: Count = 0
    deferred: Count = 0
    dead_letters: Count = 0
    dropped: Count = 0


class BrokerFigures(msgspec.Struct, frozen=True):
    """What the broker says of itself; shares are of what the machine (or the setting for the network) has."""

    connections: Count = 0
    mqtt_connections: Count = 0
    messages_in: Figure = 0.0
    messages_out: Figure = 0.0
    bytes_in: Figure = 0.0
    bytes_out: Figure = 0.0
    cpu: Figure = 0.0
    memory: Figure = 0.0
    network: Figure = 0.0


class TopicLag(msgspec.Struct, frozen=True, array_like=True):
    """Publications of a durable topic that nobody processed within their settling time, as a store sees it."""

    topic: TopicPattern
    waiting: Count
    oldest_s: Seconds


class SiteReport(msgspec.Struct, frozen=True):
    """From a site's agent, to whoever listens; the coordinator that leads answers.

    revision: the registry's, of the assignments the site follows. arrived, gone: clients since the last report.
    seconds: the time it covers. store: it answers and can write. round_trips: measured, to other sites.
    ready: it has measured its peers.
    urgent: a client has moved, come or gone just now. lags: of topics that its store keeps. term: the highest one seen.
    processors: the patterns of the topics that its modules can process; none while that is not known.
    over_limit: users of whom connections were closed because of a limit, and how many, since the site started.
    answered_term, answered_clock: of the last answer. witnessed: the sites that may count on it (`Witness`); none while
    that is not known. sites: the digest of the sites it knows.
    """

    site: Name
    revision: Sequence
    coordinate: Coordinate | None = None
    broker: BrokerFigures = BrokerFigures()
    store: bool = True
    workers: Annotated[list[WorkerFigures], Meta(max_length=10_000)] = []
    topics: Annotated[list[TopicReport], Meta(max_length=MOST_TOPICS)] = []
    arrived: Annotated[list[Name], Meta(max_length=MOST_CLIENTS)] = []
    gone: Annotated[list[Name], Meta(max_length=MOST_CLIENTS)] = []
    seconds: Seconds = 0.0
    round_trips: RoundTrips = {}
    ready: bool = True
    urgent: bool = False
    lags: Annotated[list[TopicLag], Meta(max_length=MOST_TOPICS)] = []
    term: Term = 0
    processors: Annotated[list[TopicPattern], Meta(max_length=10_000)] | None = None
    over_limit: Annotated[dict[Name, Count], Meta(max_length=1000)] = {}
    answered_term: Term = 0
    answered_clock: Seconds = 0.0
    witnessed: Annotated[list[Name], Meta(max_length=MOST_SITES)] | None = None
    sites: Text = ""
