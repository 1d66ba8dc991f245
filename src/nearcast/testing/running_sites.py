"""Real sites for tests: brokers, stores and workers on free ports of loopback, gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nearcast.auth.deployment_keys import add_tenant, add_tls, make_deployment_keys
from nearcast.domain.deployment import AuthSpec, Deployment, TenantSpec
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.nats.subjects import store_api
from nearcast.site.ports import free_ports
from nearcast.site.servers import fetch_monitoring
from nearcast.site.site import Site, run_sites

if TYPE_CHECKING:
    from nearcast.auth.auth_folder import AuthFolder
    from nearcast.domain.topic import TopicSpec

__all__ = ["RunningSites", "sites", "until"]

_POLL = 0.02
_INTEREST_LIMIT = 60.0
_PASSING = ("_", "$SYS.", "$JS.API.", "$LDS.")
_Interest = set[tuple[str, str]]  # account and subject


class RunningSites:
    """Sites by name, and the folder with their stores, spools and logs."""

    def __init__(self, folder: Path, running: dict[str, Site], auth: AuthFolder | None = None) -> None:
        self.folder, self.sites, self.auth = folder, running, auth

    def url(self, site: str) -> str:
        """What clients connect to."""
        return self.sites[site].spec.url

    async def interest_settled(self) -> None:
        """Wait until each broker knows what is subscribed to at the others, and what is not any more.

        Before that, a message to a new subscription of another site does not reach it. Flush raw subscriptions first.
        """
        await until(self._interest_is_known, _INTEREST_LIMIT)

    async def _interest_is_known(self) -> bool:
        running = {name: site for name, site in self.sites.items() if site.broker is not None and site.broker.pid}
        try:
            known = {name: await _known_interest(site.spec) for name, site in running.items()}
            local = {name: await _local_interest(site.spec) for name, site in running.items()}
        except OSError:  # a broker that starts
            return False
        stores = {name for name, site in running.items() if site.store is not None and site.store.pid}
        joined = all(any(subject.startswith(store_api(name)) for _, subject in local[name]) for name in stores)
        return joined and all(
            known[one].get(other, set()) == local[other] for one in running for other in running if one != other
        )


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
            made = RunningSites(folder, running, auth)
            await made.interest_settled()
            yield made


async def _local_interest(site: SiteSpec) -> _Interest:
    """What clients, workers, the agent and the store of a site subscribe to."""
    clients = (await fetch_monitoring(site, "subsz?subs=1&limit=1000000"))["subscriptions_list"] or ()
    leafs = (await fetch_monitoring(site, "leafz?subs=1"))["leafs"] or ()
    found = {(one["account"], one["subject"]) for one in clients}
    return _lasting(found | {(leaf["account"], subject) for leaf in leafs for subject in _subjects(leaf)})


async def _known_interest(site: SiteSpec) -> dict[str, _Interest]:
    """What the broker of a site knows of the interest at each other one."""
    gateways = (await fetch_monitoring(site, "gatewayz?accs=1&subs=1"))["outbound_gateways"]
    return {
        name: _lasting(
            {(account["name"], subject) for account in gateway["accounts"] for subject in _subjects(account)}
        )
        for name, gateway in gateways.items()
    }


def _subjects(part: dict[str, Any]) -> Sequence[str]:
    return part.get("subscriptions_list") or ()


def _lasting(interest: _Interest) -> _Interest:
    """Without inboxes, which come and go with each request, and what servers subscribe to for themselves."""
    return {(account, subject) for account, subject in interest if not subject.startswith(_PASSING)}


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
