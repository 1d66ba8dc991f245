"""Sites: where brokers, stores and workers run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nearcast.errors import InputError

__all__ = ["Limits", "SiteSpec", "StoreSpec", "check_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def check_name(name: str, what: str) -> str:
    """Return a site's, client's or worker's name if it can travel in a subject; raise InputError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            f"{what} name {name!r}: letters, digits, - and _ are allowed, 63 at most, starting with neither"
        )
    return name


@dataclass(frozen=True)
class StoreSpec:
    """A site's JetStream server. `sync_always` writes every message through to the disk before it is acknowledged."""

    directory: Path
    max_bytes: int = 10 * 2**30
    sync_always: bool = False


@dataclass(frozen=True)
class Limits:
    """What a broker refuses: larger payloads, more connections, subscribers that fall too far behind."""

    max_payload: int = 1 << 20
    max_connections: int = 65_536
    max_pending: int = 64 << 20


@dataclass(frozen=True)
class SiteSpec:
    """One site. Its servers take five ports from `port` on: clients, gateway, leaf node, store, monitoring.

    bandwidth_mbit: what its link carries in one direction, in Mbit/s; without it the network is not watched.
    """

    name: str
    kind: Literal["edge", "cloud"] = "edge"
    position: tuple[float, float] | None = None  # latitude, longitude
    host: str = "127.0.0.1"
    port: int = 4222
    mqtt_port: int | None = None
    store: StoreSpec | None = None
    limits: Limits = Limits()
    workers: int = 1
    bandwidth_mbit: float | None = None

    @property
    def gateway_port(self) -> int:
        return self.port + 1

    @property
    def leaf_port(self) -> int:
        return self.port + 2

    @property
    def store_port(self) -> int:
        return self.port + 3

    @property
    def monitor_port(self) -> int:
        return self.port + 4

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{self.host}:{self.port}"

    @property
    def store_url(self) -> str:
        """Where the site's own agent reads its store in bulk."""
        return f"nats://{self.host}:{self.store_port}"

    def ports(self) -> dict[str, int]:
        """Every port this site listens on, by what it is for."""
        ports = {"clients": self.port, "gateway": self.gateway_port, "monitoring": self.monitor_port}
        if self.store is not None:
            ports |= {"leaf node": self.leaf_port, "store": self.store_port}
        if self.mqtt_port is not None:
            ports["mqtt"] = self.mqtt_port
        return ports
