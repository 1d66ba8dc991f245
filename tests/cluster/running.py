"""Two sites and a data cluster for tests, and the events of the emergency application sent through them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nearcast
from nearcast.domain.cluster import ClusterSpec
from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec, StoreSpec
from nearcast.site.ports import free_ports


def two_sites(folder: Path) -> Deployment:
    """An edge and the cloud, with a warehouse."""
    specs = []
    for name, kind in (("edge", "edge"), ("cloud", "cloud")):
        (folder / "stores" / name).mkdir(parents=True, exist_ok=True)
        specs.append(SiteSpec(name, kind, port=free_ports(), store=StoreSpec(folder / "stores" / name)))  # type: ignore[arg-type]
    return Deployment(tuple(specs), cluster=ClusterSpec(str(folder / "warehouse"), batch_rows=500))


async def until(condition: Callable[[], Any], what: str, limit: float = 150.0) -> None:
    """Wait for a condition, with a limit."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come about within {limit:g} s")
        await asyncio.sleep(0.05)


async def feed_all(client: nearcast.Client, dataset: str, records: list[Any]) -> None:
    async with asyncio.TaskGroup() as group:
        for record in records:
            group.create_task(client.feed(dataset, record, timeout=30))


class Inbox:
    """All results of one subscription."""

    def __init__(self, name: str, params: dict[str, Any]) -> None:
        self.name, self.params = name, params
        self.ids: list[str] = []
        self.results: list[dict[str, Any]] = []

    def take(self, message: nearcast.Message) -> None:
        self.ids.append(message.id)
        self.results.append(message.data)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for result in self.results for row in result["rows"]]


async def subscribe_all(client: nearcast.Client, wanted: list[tuple[str, dict[str, Any]]]) -> list[Inbox]:
    inboxes = []
    for name, params in wanted:
        inbox = Inbox(name, params)
        await client.subscribe(channel=name, params=params, callback=inbox.take)
        inboxes.append(inbox)
    return inboxes
