"""Sites: where brokers, stores and workers run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nearcast.domain.ranges import Latitude, Longitude, Name

__all__ = ["Limits", "SiteSpec", "StoreSpec"]


class StoreSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A site's JetStream server. `sync_always` writes every message through to the disk before it is acknowledged."""

    directory: Path
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 10 * 2**30
    sync_always: bool = False


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a broker refuses: larger payloads, more connections, subscribers that fall too far behind."""

    max_payload: Annotated[int, Meta(ge=1024, le=64 << 20)] = 1 << 20
    max_connections: Annotated[int, Meta(ge=1)] = 65_536
    max_pending: Annotated[int, Meta(ge=1024)] = 64 << 20


class SiteSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One site. It takes six ports from `port` on: clients, gateway, leaf node, store, monitoring, metrics.

    position: latitude and longitude. bandwidth_mbit: what its link carries in one direction, in Mbit/s; without it the
    network is not monitored. max_workers: how many workers the control plane may start here. metrics_host: where
    `/metrics` is served for Prometheus. monitor_path: what stands before the paths of the monitoring port.
    """

    name: Name
    kind: Literal["edge", "cloud"] = "edge"
    position: tuple[Latitude, Longitude] | None = None
    host: Annotated[str, Meta(pattern=r"^[A-Za-z0-9.:_-]+\Z", description="an address or name of a machine")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Meta(ge=1, le=65530, description="1 to 65530 (six ports from it on are used)")] = 4222
    mqtt_port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    store: StoreSpec | None = None
    limits: Limits = Limits()
    workers: Annotated[int, Meta(ge=1)] = 1
    max_workers: Annotated[int, Meta(ge=1)] = 64
    bandwidth_mbit: Annotated[float, Meta(gt=0)] | None = None
    metrics_host: str = "127.0.0.1"
    monitor_path: Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9_-]{1,64})?\Z")] = ""

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
    def metrics_port(self) -> int:
        return self.port + 5

    @property
    def monitor_host(self) -> str:
        """Where the broker answers questions about itself: anybody who asks is answered, so this machine only."""
        return "127.0.0.1"

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
        ports = {
            "clients": self.port,
            "gateway": self.gateway_port,
            "monitoring": self.monitor_port,
            "metrics": self.metrics_port,
        }
        if self.store is not None:
            ports |= {"leaf node": self.leaf_port, "store": self.store_port}
        if self.mqtt_port is not None:
            ports["mqtt"] = self.mqtt_port
        return ports
