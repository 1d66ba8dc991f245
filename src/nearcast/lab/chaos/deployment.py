"""What runs during a chaos run: four sites and a cloud, topics of every kind, and who publishes and subscribes.

Every site has a node of its own, and so have the devices beside it. All delays are one way, in milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from nearcast.domain.deployment import ClusterSpec
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.lab.chaos.processor import LEDGER_VARIABLE, SITE_VARIABLE
from nearcast.lab.scenarios.startup import toml_text
from nearcast.lab.wan.topology import LinkSettings, Topology, from_links

__all__ = [
    "CHANNEL",
    "CHANNEL_TOPIC",
    "CLOUD",
    "COORDINATORS",
    "COORDINATOR_SETTINGS",
    "DATASET",
    "DRIVER",
    "KINDS",
    "MQTT_PORT",
    "MQTT_SITE",
    "MQTT_TOPIC",
    "PORT",
    "SITES",
    "SMALL_DISK",
    "STORES",
    "TOPICS",
    "VAN",
    "PublisherJob",
    "SubscriberJob",
    "client_jobs",
    "cluster_jobs",
    "configuration_text",
    "devices_node",
    "false_clock_jobs",
    "topology",
    "ways",
]

CLOUD = "cloud"
EDGE = ("north", "east", "south", "west")
SITES = (*EDGE, CLOUD)
STORES = ("north", "east", "south", CLOUD)
COORDINATORS = (CLOUD, "south")  # the nodes they run at; both keep their state in the cloud's store
VAN = "van"
SMALL_DISK = "east"  # the store that is on a disk of its own, which can be full
PORT, MQTT_PORT = 4222, 1883
MQTT_SITE = "east"
MQTT_TOPIC = "meter.*"
BETWEEN_SITES, TO_CLOUD, ACCESS, UNUSED = 8.0, 20.0, 3.0, 50.0
# A site that is lost is given up after half the default, so that a fault of 20 s is long enough to see it.
CHANNEL, DATASET = "emergencies", "reports"
CHANNEL_TOPIC = f"channel.{CHANNEL}"  # what the ledger calls it
DRIVER = "driver"  # a place of the channel's flows
KINDS = ("fire", "flood")
COORDINATOR_SETTINGS = {"period": 2.0, "lease": 4.0, "site_lost_after": 10.0, "cool_down": 20.0}
REPORT_SECONDS = 2.0

TOPICS = (
    TopicSpec("alerts.north", ("north",), ("north", "east", CLOUD), quorum=2),
    TopicSpec("alerts.east", ("east",), ("east", "south", CLOUD), quorum=2),
    TopicSpec("alerts.both", ("south", "west"), ("south", "north", CLOUD), quorum=2),
    TopicSpec("orders.east", ("east",), ("east", "north", CLOUD), quorum=2, ordered=True),
    TopicSpec(MQTT_TOPIC, ("north",), ("north", "east", "south"), quorum=2),
    TopicSpec("log.city", (), ("north", "east", "south"), quorum=2),
    TopicSpec("gps.plain", ("west",)),
    TopicSpec("chat.plain"),
)


class PublisherJob(msgspec.Struct, frozen=True):
    """A client that publishes. urls: of its home, or with `coordinated` of any broker. spool: it has one."""

    name: str
    urls: list[str]
    topic: str
    rate: float
    coordinated: bool = False
    mobile: bool = False
    spool: bool = False


class SubscriberJob(msgspec.Struct, frozen=True):
    """A client that subscribes for the whole run: to a topic, to its dead letters, or to the channel with values."""

    name: str
    urls: list[str]
    topic: str
    coordinated: bool = False
    mobile: bool = False
    dead_letters: bool = False
    values: dict[str, Any] = {}


def devices_node(site: str) -> str:
    """The node of the devices near a site."""
    return f"dev-{site}"


def topology() -> Topology:
    """Sites, the devices beside each edge site, and a van that begins in the north."""
    links = {pair: LinkSettings(BETWEEN_SITES) for pair in itertools.combinations(EDGE, 2)}
    links |= {(site, CLOUD): LinkSettings(TO_CLOUD) for site in EDGE}
    nodes = {devices_node(site): ways(site) for site in EDGE} | {VAN: ways("north")}
    for node, to_sites in nodes.items():
        links |= {(node, site): LinkSettings(way) for site, way in to_sites.items()}
    links |= {pair: LinkSettings(UNUSED) for pair in itertools.combinations(nodes, 2)}
    return from_links(links)


def ways(near: str) -> dict[str, float]:
    """The delays to all sites while near one."""
    others = dict.fromkeys(EDGE, ACCESS + BETWEEN_SITES)
    return others | {near: ACCESS, CLOUD: ACCESS + TO_CLOUD}


def configuration_text(address: Callable[[str], str], *, cluster: bool = False) -> str:
    """`nearcast.toml`, relative to which the stores' directories are."""
    sites = [
        SiteSpec(
            site,
            "cloud" if site == CLOUD else "edge",
            host=address(site),
            port=PORT,
            mqtt_port=MQTT_PORT if site == MQTT_SITE else None,
            store=StoreSpec(Path("stores", site)) if site in STORES else None,
        )
        for site in SITES
    ]
    return toml_text(
        processors=["nearcast.lab.chaos.processor"],
        report_seconds=REPORT_SECONDS,
        insecure=True,
        site=sites,
        topic=TOPICS,
        processor_limits=ProcessorLimits(environment=(LEDGER_VARIABLE, SITE_VARIABLE)),
        cluster=ClusterSpec("warehouse", master="local[2]", analyse_every=0) if cluster else None,
    )


def false_clock_jobs(url: Callable[[str], str]) -> tuple[list[PublisherJob], list[SubscriberJob]]:
    """The clients of a process whose clock is wrong."""
    return (
        [PublisherJob("pub-clock", [url("west")], "alerts.north", 10.0)],
        [SubscriberJob("sub-clock", [url("west")], "alerts.north")],
    )


def cluster_jobs(url: Callable[[str], str]) -> tuple[list[PublisherJob], list[SubscriberJob]]:
    """Who feeds the data cluster, and who subscribes to its channel: two of them share a subscription."""
    return (
        [PublisherJob("feeder", [url(CLOUD), url("south")], CHANNEL_TOPIC, 5.0)],
        [
            SubscriberJob(f"sub-{kind}-{n}", [url("north"), url(CLOUD)], CHANNEL_TOPIC, values={"kind": kind})
            for n, kind in enumerate((*KINDS, KINDS[0]))
        ],
    )


def client_jobs(url: Callable[[str], str]) -> dict[str, tuple[list[PublisherJob], list[SubscriberJob]]]:
    """The clients of each node. Some know the coordinators, some a home and a second broker, some a home only."""
    everywhere = [url(site) for site in SITES]
    return {
        devices_node("north"): (
            [PublisherJob("pub-north", everywhere, "alerts.north", 20.0, coordinated=True)],
            [SubscriberJob("sub-north", everywhere, "alerts.>", coordinated=True)],
        ),
        devices_node("east"): (
            [PublisherJob("pub-east", [url("east")], "alerts.east", 20.0, spool=True)],
            [SubscriberJob("sub-east", [url("east")], "alerts.>"), SubscriberJob("sub-log", [url("east")], "log.city")],
        ),
        devices_node("south"): (
            [
                PublisherJob("pub-both", [url("south"), url(CLOUD)], "alerts.both", 20.0),
                PublisherJob("pub-log", [url("south"), url(CLOUD)], "log.city", 10.0, spool=True),
            ],
            [
                SubscriberJob("sub-meter", everywhere, "meter.*", coordinated=True),
                SubscriberJob("sub-dead", everywhere, ">", coordinated=True, dead_letters=True),
            ],
        ),
        devices_node("west"): (
            [
                PublisherJob("pub-gps", [url("west")], "gps.plain", 10.0),
                PublisherJob("pub-west", [url("west"), url(CLOUD)], "alerts.both", 10.0),
                PublisherJob("pub-orders", everywhere, "orders.east", 10.0, coordinated=True),
            ],
            [
                SubscriberJob("sub-gps", [url("west")], "gps.plain"),
                SubscriberJob("sub-chat", [url("west")], "chat.plain"),
                SubscriberJob("sub-orders", everywhere, "orders.east", coordinated=True),
            ],
        ),
        VAN: (
            [
                PublisherJob("van-alerts", everywhere, "alerts.east", 10.0, coordinated=True, mobile=True),
                PublisherJob("van-chat", everywhere, "chat.plain", 5.0, coordinated=True, mobile=True),
            ],
            [SubscriberJob("van-sub", everywhere, "alerts.north", coordinated=True, mobile=True)],
        ),
    }  # fmt: skip
