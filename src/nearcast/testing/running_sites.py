"""Real sites for tests: brokers, stores and workers on free ports of loopback, gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from nearcast.auth.deployment_keys import add_tenant, add_tls, make_deployment_keys
from nearcast.domain.deployment import AuthSpec, Deployment, TenantSpec
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.site.ports import free_ports
from nearcast.site.site import Site, run_sites

if TYPE_CHECKING:
    from nearcast.auth.auth_folder import AuthFolder
    from nearcast.domain.topic import TopicSpec

__all__ = ["RunningSites", "interest_settled", "sites", "until"]

_POLL = 0.02
_INTEREST_SETTLE = 0.3


class RunningSites:
    """Sites by name, and the folder with their stores, spools and logs."""

    def __init__(self, folder: Path, running: dict[str, Site], auth: AuthFolder | None = None) -> None:
        self.folder, self.sites, self.auth = folder, running, auth

    def url(self, site: str) -> str:
        """What clients connect to."""
        return self.sites[site].spec.url


@contextlib.asynccontextmanager
async def sites(
    *topics: TopicSpec,
    names: Sequence[str] = ("edge", "cloud"),
    processors: Sequence[str | ModuleType] = (),
    search_path: Sequence[str] = (),
    folder: Path | None = None,
    mqtt: bool = False,
    report_seconds: float = 5.0,
    secured: bool = False,
    tenants: Sequence[TenantSpec] = (),
) -> AsyncIterator[RunningSites]:
    """`async with sites(TopicSpec("gps.*", ("edge",)), processors=[my_module]) as running`: sites with stores.

    names:      of the sites; one named `cloud` is of that kind
    processors: modules, or their names
    search_path: where workers look for modules, before this process's `sys.path`
    folder:     for all their files; a temporary one by default
    mqtt:       whether devices can connect (`running.sites[name].spec.mqtt_port`)
    tenants:    further ones of the same sites, beside `main`; they need `secured`
    secured:    with credentials and TLS: `running.auth.add_user(...)` makes the file that a client connects with
    """
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearcast-")))
        specs = []
        for name in names:
            store = folder / "stores" / name
            store.mkdir(parents=True, exist_ok=True)
            port = free_ports()
            specs.append(
                SiteSpec(
                    name,
                    "cloud" if name == "cloud" else "edge",
                    port=port,
                    mqtt_port=port + 6 if mqtt else None,
                    store=StoreSpec(store),
                )
            )
        modules = tuple(one.__name__ if isinstance(one, ModuleType) else one for one in processors)
        auth = make_deployment_keys(folder / "auth", specs) if secured else None
        if auth is not None:
            for tenant in tenants:
                add_tenant(auth, tenant.name, specs)
            add_tls(auth, specs)
        spec = AuthSpec(auth.path) if auth is not None else None
        deployment = Deployment(
            tuple(specs), topics, modules, report_seconds=report_seconds, auth=spec, tenants=tuple(tenants)
        )
        async with run_sites(
            deployment, folder / "run", [*search_path, *(path or "." for path in sys.path)]
        ) as running:
            await interest_settled()
            yield RunningSites(folder, running, auth)


async def interest_settled() -> None:
    """Brokers on one machine learn of each other's subscriptions within this time; there is no event to wait for."""
    await asyncio.sleep(_INTEREST_SETTLE)


async def until(holds: Callable[[], Awaitable[bool]] | Callable[[], bool], limit: float = 30.0) -> None:
    """Wait for a condition; AssertionError when it does not come to hold within `limit` seconds."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + limit
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        if clock() > deadline:
            raise AssertionError(f"the condition did not come to hold within {limit:g} s")
        await asyncio.sleep(_POLL)
