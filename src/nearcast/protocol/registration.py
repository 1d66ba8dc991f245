"""How sites and clients make themselves known to the coordinator, and what they are told."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nearcast.coordinates import Coordinate
from nearcast.domain.ranges import (
    Address,
    Count,
    Latitude,
    Longitude,
    Microseconds,
    Milliseconds,
    Name,
    NameOrNone,
    Term,
    Text,
    TopicPattern,
)
from nearcast.protocol.control import MOST_SITES, MOST_TOPICS, TopicRecord

__all__ = [
    "MOST_OF_A_CLIENT",
    "ClientRecord",
    "HomeAnswer",
    "RegisterSite",
    "RoundTrips",
    "SiteCoordinate",
    "SiteCoordinates",
    "SiteInfo",
    "SiteStanding",
]


MOST_OF_A_CLIENT = 10_000
"""Topics and channels that one client may take part in."""

Port = Annotated[int, Meta(ge=1, le=65_535)]
RoundTrips = Annotated[dict[Name, Milliseconds], Meta(max_length=MOST_SITES)]
Topics = Annotated[list[TopicPattern], Meta(max_length=MOST_OF_A_CLIENT)]


class SiteInfo(msgspec.Struct, frozen=True):
    """A site, as its agent describes it."""

    name: Name
    url: Address
    host: Address
    port: Port
    kind: Literal["edge", "cloud"] = "edge"
    workers: Annotated[int, Meta(ge=1, le=10_000)] = 1
    store: bool = False
    position: tuple[Latitude, Longitude] | None = None
    max_connections: Count = 65_536


class SiteStanding(msgspec.Struct, frozen=True):
    """A site's answer to a discovery: the sites of its configuration, and the highest term it has seen."""

    site: Name
    sites: Annotated[list[Name], Meta(max_length=MOST_SITES)]
    term: Term = 0


class RegisterSite(msgspec.Struct, frozen=True):
    """A site, and the topics it follows: those of its configuration, or the records of a registry.

    Records that the registry does not know yet, or only in an older epoch, are taken over.
    """

    info: SiteInfo
    topics: Annotated[list[TopicRecord], Meta(max_length=MOST_TOPICS)] = []


class ClientRecord(msgspec.Struct, frozen=True):
    """A client: where it is, and what it publishes and subscribes to.

    channels: its subscriptions as `channel.key`, equal ones alike. tried: sites that it could not reach; it asks for
    another home. round_trips: measured, to a bounded number of sites, ms.
    """

    name: Name
    home: NameOrNone = ""
    coordinate: Coordinate | None = None
    publishes: Topics = []
    subscribes: Topics = []
    channels: Annotated[list[Text], Meta(max_length=MOST_OF_A_CLIENT)] = []
    tried: Annotated[list[Name], Meta(max_length=MOST_SITES)] = []
    round_trips: RoundTrips = {}


class HomeAnswer(msgspec.Struct, frozen=True):
    """A client's home, and the next nearest sites should it not answer: names and addresses, best first."""

    term: Term
    homes: Annotated[list[tuple[Name, Address]], Meta(max_length=MOST_SITES)]


class SiteCoordinate(msgspec.Struct, frozen=True):
    """A site with its address and coordinate."""

    site: Name
    host: Address
    port: Port
    coordinate: Coordinate


class SiteCoordinates(msgspec.Struct, frozen=True):
    """The coordinate of an agent's site, first, of the other sites it knows, nearest first, and its clock in µs."""

    sites: Annotated[list[SiteCoordinate], Meta(max_length=MOST_SITES)]
    now_us: Microseconds = 0
