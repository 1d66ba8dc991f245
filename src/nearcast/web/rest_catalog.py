"""REST of the data cluster: datasets, channels, and queries that are asked once."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query

from nearcast.config.validation import to_struct
from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.web.catalog_changes import CatalogChanges
from nearcast.web.operations import NoDataClusterError, Operations
from nearcast.web.request_bodies import Channel, Columns, Dataset, Name, Records, Replay, Row, SqlQuery, Trial, User

__all__ = ["add_catalog"]


def add_catalog(router: APIRouter, operations: Operations) -> None:
    """Add what is below /datasets, /channels, /query and /cluster."""
    _add_datasets(router, operations)
    _add_channels(router, operations)

    @router.post("/query")
    async def query(asked: SqlQuery) -> Row:
        """One SELECT over the datasets, by the rules of channels; values as text. It changes nothing."""
        return dict(msgspec.to_builtins(await operations.query(asked.query, asked.limit)))

    @router.get("/cluster")
    async def cluster() -> Row:
        """The state of the data cluster: what each producer did, what the tables have, subscriptions by channel."""
        state = await operations.cluster_state()
        if state is None:
            raise NoDataClusterError
        return dict(msgspec.to_builtins(state))


def _add_datasets(router: APIRouter, operations: Operations) -> None:
    @router.get("/datasets")
    async def datasets() -> list[Row]:
        """The datasets of the catalog."""
        return [_fields(spec) for spec in (await operations.datasets()).values()]

    @router.get("/datasets/{name}")
    async def dataset(name: Name) -> Row:
        """One dataset with all its settings."""
        return _fields(await operations.dataset(name))

    @router.delete("/datasets/{name}", status_code=204)
    async def remove_dataset(name: Name, user: User) -> None:
        """Remove a dataset that no channel reads. Its files stay in the warehouse."""
        await CatalogChanges(operations, user).remove_dataset(name)

    @router.post("/datasets", status_code=201)
    async def add_dataset(dataset: Dataset, user: User) -> Row:
        """Add a dataset; the data cluster checks its schema."""
        spec = to_struct(dataset.model_dump(by_alias=True), DatasetSpec)
        return _fields(await CatalogChanges(operations, user).add_dataset(spec))

    @router.post("/datasets/{name}/columns")
    async def add_columns(name: Name, columns: Columns, user: User) -> Row:
        """Add columns to a dataset."""
        return _fields(await CatalogChanges(operations, user).alter_dataset(name, columns.columns))

    @router.put("/datasets/{name}/records")
    async def load_dataset(name: Name, content: Records, user: User) -> Row:
        """Replace the content of a static dataset."""
        return {"name": name, "rows": await CatalogChanges(operations, user).load_dataset(name, content.records)}

    @router.post("/datasets/{name}/backfill", status_code=201)
    async def backfill_dataset(name: Name, content: Records, user: User) -> Row:
        """Put past records into a dataset; no channel is notified of them. The same ones are refused a second time."""
        return {"name": name, "rows": await CatalogChanges(operations, user).backfill_dataset(name, content.records)}

    @router.get("/datasets/{name}/quarantine")
    async def quarantine(name: Name, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[Row]:
        """Records of a dataset that were refused, and why, the newest first."""
        return [msgspec.to_builtins(record) for record in await operations.quarantine(name, limit)]


def _add_channels(router: APIRouter, operations: Operations) -> None:
    @router.get("/channels")
    async def channels() -> list[Row]:
        """The channels of the catalog."""
        return [_fields(spec) for spec in (await operations.channels()).values()]

    @router.get("/channels/{name}")
    async def channel(name: Name) -> Row:
        """One channel with all its settings."""
        return _fields(await operations.channel(name))

    @router.delete("/channels/{name}", status_code=204)
    async def remove_channel(name: Name, user: User) -> None:
        """Remove a channel with its results; its subscribers get no more."""
        await CatalogChanges(operations, user).remove_channel(name)

    @router.post("/channels", status_code=201)
    async def add_channel(channel: Channel, user: User) -> Row:
        """Add a channel; the data cluster checks its query."""
        spec = to_struct(channel.model_dump(), ChannelSpec)
        return _fields(await CatalogChanges(operations, user).add_channel(spec))

    @router.get("/channels/{name}/subscriptions")
    async def subscriptions(name: Name) -> list[Row]:
        """The shared subscriptions of a channel: how many clients, at which sites."""
        return list(await operations.ask("channel", "subscriptions", name=name))

    @router.get("/channels/{name}/faults")
    async def faults(name: Name) -> list[Row]:
        """Why a channel or subscriptions of it are switched off, or failed for a record."""
        await operations.channel(name)
        parts = ((key.partition("."), why) for key, why in (await operations.faults()).items())
        return [{"subscription": key, "reason": why} for (channel, _, key), why in parts if channel == name]

    @router.get("/channels/{name}/explanation")
    async def explain(name: Name) -> Row:
        """The statement that answers all subscriptions of a channel, and Spark's plan of it."""
        return {"name": name, "explanation": await operations.explain(name)}

    @router.post("/channels/{name}/test")
    async def try_out(name: Name, trial: Trial, user: User) -> list[Row]:
        """The rows that one subscription would get from given records. Nothing is published."""
        return await CatalogChanges(operations, user).try_channel(name, trial.records, trial.values)

    @router.post("/channels/{name}/replay")
    async def replay(name: Name, asked: Replay, user: User) -> Row:
        """The results of a channel over the records that its dataset has kept: how many, and the first of them."""
        found = await CatalogChanges(operations, user).replay(
            name, asked.since, asked.values, publish=asked.publish, limit=asked.limit
        )
        return {"count": found.count, "results": [json.loads(result) for result in found.results]}


def _fields(spec: DatasetSpec | ChannelSpec) -> dict[str, Any]:
    return dict(msgspec.to_builtins(spec))
