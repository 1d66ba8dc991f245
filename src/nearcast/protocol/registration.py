"""How sites and clients make themselves known to the coordinator, and what they are told."""

from __future__ import annotations

from typing import Literal

import msgspec

from nearcast.coordinates import Coordinate
from nearcast.protocol.control import TopicRecord

__all__ = [
    "ClientRecord",
    "HomeAnswer",
    "RegisterSite",
    "SiteCoordinate",
    "SiteCoordinates",
    "SiteInfo",
    "SiteStanding",
]


class SiteInfo(msgspec.Struct, frozen=True):
    """A site, as its agent describes it."""

    name: str
    url: str
    host: str
    port: int
    kind: Literal["edge", "cloud"] = "edge"
    workers: int = 1
    store: bool = False
    position: tuple[float, float] | None = None
    max_connections: int = 65_536


class SiteStanding(msgspec.Struct, frozen=True):
    """A site's answer to a discovery: the sites of its configuration, and the highest term it has seen."""

    site: str
    sites: list[str]
    term: int = 0


class RegisterSite(msgspec.Struct, frozen=True):
    """A site, and the topics it follows: those of its configuration, or the records of a registry.

    Records that the registry does not know yet, or only in an older epoch, are taken over.
    """

    info: SiteInfo
    topics: list[TopicRecord] = []


class ClientRecord(msgspec.Struct, frozen=True):
    """A client: where it is, and what it publishes and subscribes to.

    channels: its subscriptions as `channel.key`, equal ones alike. tried: sites that it could not reach; it asks for
    another home. round_trips: measured, to a bounded number of sites, ms.
    """

    name: str
    home: str = ""
    coordinate: Coordinate | None = None
    publishes: list[str] = []
    subscribes: list[str] = []
    channels: list[str] = []
    tried: list[str] = []
    round_trips: dict[str, float] = {}


class HomeAnswer(msgspec.Struct, frozen=True):
    """A client's home, and the next nearest sites should it not answer: names and addresses, best first."""

    term: int
    homes: list[tuple[str, str]]


class SiteCoordinate(msgspec.Struct, frozen=True):
    """A site with its address and coordinate."""

    site: str
    host: str
    port: int
    coordinate: Coordinate


class SiteCoordinates(msgspec.Struct, frozen=True):
    """The coordinate of an agent's site, first, of the other sites it knows, nearest first, and its clock in µs."""

    sites: list[SiteCoordinate]
    now_us: int = 0
