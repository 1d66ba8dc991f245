"""What clients tell their home and sites tell the coordinator, each period.

A site's report has the same few figures for each topic, whatever the number of its clients.
"""

from __future__ import annotations

import msgspec

from nearcast.coordinates import Coordinate

__all__ = [
    "BrokerFigures",
    "ClientReport",
    "ClientTopic",
    "SiteReport",
    "SiteWay",
    "TopicLag",
    "TopicReport",
    "WorkerFigures",
    "WorkerTopic",
    "channel_row",
    "is_channel",
]


def channel_row(channel: str) -> str:
    """A channel's name among the topics of a report; no topic has a space in its name."""
    return f"channel {channel}"


def is_channel(topic: str) -> bool:
    """Whether a name in a report is that of a channel."""
    return topic.startswith("channel ")


class ClientTopic(msgspec.Struct, frozen=True, array_like=True):
    """A client's traffic of one topic (or pattern it subscribes to) since its last report; latencies are sampled."""

    topic: str
    publishes: bool = False
    subscribes: bool = False
    messages_out: int = 0
    bytes_out: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    latency: dict[int, int] = {}


class ClientReport(msgspec.Struct, frozen=True):
    """From a client to the agent of its home.

    round_trips: measured, to a bounded number of sites, its home among them. moved: the way to its home has changed
    just now, or it has just come; the site tells the coordinator at once. 0 seconds: its last report here.
    """

    client: str
    seconds: float
    coordinate: Coordinate | None = None
    topics: list[ClientTopic] = []
    round_trips: dict[str, float] = {}
    moved: bool = False


class SiteWay(msgspec.Struct, frozen=True, array_like=True):
    """How far the clients of a topic are from a site, one way: the worst and the mean of them, ms."""

    site: str
    worst: float
    mean: float


class TopicReport(msgspec.Struct, frozen=True, array_like=True):
    """One topic at one site, in constant size.

    Centroids are of the producers' and consumers' positions. Deviations are the largest distance of one of them from
    its centroid, heights included; legs the largest distance to the topic's managing site: both are estimated round
    trips. Ways are measured, one way, to the nearest
    of the sites that the clients measured, at most eight. Rates are per second.
    p90_ms is measured: publication to receipt, of so many samples.
    """

    topic: str
    producers: float  # counts, but of one size on the wire
    consumers: float
    producer_centroid: tuple[float, ...]
    consumer_centroid: tuple[float, ...]
    producer_deviation: float
    consumer_deviation: float
    producer_leg: float
    consumer_leg: float
    producer_ways: list[SiteWay]
    consumer_ways: list[SiteWay]
    messages_out: float
    bytes_out: float
    messages_in: float
    bytes_in: float
    samples: float
    p90_ms: float


class WorkerTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic in a worker: rate, milliseconds of processing per message, p90 from arrival at the worker to outcome.

    dead_letters, deferred: since the worker took the topic; deferred ones had no room, and come again from a store.
    """

    topic: str
    rate: float
    processing_ms: float
    waiting: int
    p90_ms: float
    dead_letters: int = 0
    deferred: int = 0


class WorkerFigures(msgspec.Struct, frozen=True, array_like=True):
    """A worker: the share of its time it was busy, and its topics."""

    worker: str
    busy: float
    topics: list[WorkerTopic] = []


class BrokerFigures(msgspec.Struct, frozen=True):
    """What the broker says of itself; shares are of what the machine (or the setting for the network) has."""

    connections: int = 0
    mqtt_connections: int = 0
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    network: float = 0.0


class TopicLag(msgspec.Struct, frozen=True, array_like=True):
    """Publications of a durable topic that nobody processed within their settling time, as a store sees it."""

    topic: str
    waiting: int
    oldest_s: float


class SiteReport(msgspec.Struct, frozen=True):
    """From a site's agent, to whoever listens; the coordinator that leads answers.

    revision: the registry's, of the assignments the site follows. arrived, gone: clients since the last report.
    seconds: the time it covers. round_trips: measured, to other sites. ready: it has measured its peers.
    urgent: a client has moved, come or gone just now. lags: of topics that its store keeps. term: the highest one seen.
    processors: the patterns of the topics that its modules can process; none while that is not known.
    """

    site: str
    revision: int
    coordinate: Coordinate | None = None
    broker: BrokerFigures = BrokerFigures()
    store: bool = True
    workers: list[WorkerFigures] = []
    topics: list[TopicReport] = []
    arrived: list[str] = []
    gone: list[str] = []
    seconds: float = 0.0
    round_trips: dict[str, float] = {}
    ready: bool = True
    urgent: bool = False
    lags: list[TopicLag] = []
    term: int = 0
    processors: list[str] | None = None
