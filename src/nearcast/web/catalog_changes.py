"""What an operator changes in the catalog, and asks of the data cluster for that, on a connection of the user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from nearcast.codec import JSON
from nearcast.domain.channel import ChannelSpec, check_channel, check_values
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.domain.names import check_identifier
from nearcast.errors import InputError, NearcastError
from nearcast.nats.catalog import Catalog
from nearcast.protocol.data_cluster import (
    ChannelCheck,
    ChannelReplay,
    ChannelTrial,
    ColumnsCheck,
    DatasetLoad,
    RecordFile,
    ReplayAnswer,
)
from nearcast.web.changes import Changes
from nearcast.web.operations import ask_cluster

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nearcast.web.operations import Operations
    from nearcast.web.users import ConsoleUser

__all__ = ["CatalogChanges"]

_TOPIC = "pub."
T = TypeVar("T")


class CatalogChanges:
    """Of one user, who must be an operator. The data cluster judges what is added; without one nothing is."""

    def __init__(self, operations: Operations, user: ConsoleUser) -> None:
        user.require_operator()
        self._operations, self._user = operations, user
        self._note = Changes(operations, user).note

    async def add_dataset(self, spec: DatasetSpec) -> DatasetSpec:
        """Validate and add a dataset."""
        check_dataset(spec)
        if spec.source.startswith(_TOPIC):
            topic = await self._operations.ask("topic", "info", name=spec.source.removeprefix(_TOPIC))
            if not topic["replicas"]:
                raise InputError(f"dataset {spec.name}: {spec.source} is not stored; give the topic `replicas` first")
        await self._ask("check-dataset", spec, str)
        await (await self._catalog()).add_dataset(spec)
        await self._note("dataset add", spec.name)
        return await self._operations.dataset(spec.name)

    async def remove_dataset(self, name: str) -> None:
        """Remove a dataset that no channel reads."""
        await (await self._catalog()).remove_dataset(check_identifier(name, "dataset"))
        await self._note("dataset rm", name)

    async def alter_dataset(self, name: str, columns: str) -> DatasetSpec:
        """Add columns (DDL) to a dataset."""
        spec = await self._operations.dataset(name)
        altered = replace(spec, schema=await self._ask("check-columns", ColumnsCheck(spec, columns), str))
        await (await self._catalog()).replace_dataset(altered)
        await self._note("dataset alter", name)
        return altered

    async def load_dataset(self, name: str, records: list[dict[str, Any]]) -> int:
        """Replace the content of a static dataset; returns its rows."""
        spec = await self._operations.dataset(name)
        following = replace(spec, version=spec.version + 1)
        rows = await self._ask("load-dataset", DatasetLoad(following, _as_file(name, records)), int)
        await (await self._catalog()).replace_dataset(following)
        await self._note("dataset load", name)
        return rows

    async def backfill_dataset(self, name: str, records: list[dict[str, Any]]) -> int:
        """Put past records into a stream dataset, of which no channel is notified; returns how many."""
        spec = await self._operations.dataset(name)
        rows = await self._ask("backfill-dataset", DatasetLoad(spec, _as_file(name, records)), int)
        # The data cluster opens the table again: the state of a keyed dataset may have changed.
        await (await self._catalog()).replace_dataset(replace(spec, version=spec.version + 1))
        await self._note("dataset backfill", name)
        return rows

    async def add_channel(self, spec: ChannelSpec) -> ChannelSpec:
        """Validate a channel's query and add it."""
        check_channel(spec)
        datasets = await self._operations.datasets()
        new = await self._ask("check-channel", ChannelCheck(spec, list(datasets.values())), str)
        await (await self._catalog()).add_channel(replace(spec, new=new))
        await self._note("channel add", spec.name)
        return await self._operations.channel(spec.name)

    async def remove_channel(self, name: str) -> None:
        """Remove a channel with its results."""
        await (await self._catalog()).remove_channel(check_identifier(name, "channel"))
        await self._note("channel rm", name)

    async def try_channel(
        self, name: str, records: Mapping[str, list[dict[str, Any]]], values: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """The rows that one subscription would get from these records by dataset."""
        channel, datasets = await self._operations.channel(name), await self._operations.datasets()
        check_values(channel, values)
        files = [_as_file(dataset, given) for dataset, given in records.items()]
        trial = ChannelTrial(channel, list(datasets.values()), files, values)
        return await self._ask("test-channel", trial, list[dict[str, Any]])

    async def replay(
        self, name: str, since: float, values: dict[str, Any] | None, *, publish: bool, limit: int
    ) -> ReplayAnswer:
        """The results of a channel over kept records, of one subscription or of all."""
        channel, datasets = await self._operations.channel(name), await self._operations.datasets()
        if values is not None:
            check_values(channel, values)
        replay = ChannelReplay(channel, list(datasets.values()), since, values, publish, limit)
        answer = await self._ask("replay-channel", replay, ReplayAnswer)
        if publish:
            await self._note("channel replay", name)
        return answer

    async def _ask(self, verb: str, body: Any, answer: type[T]) -> T:
        return await ask_cluster(self._user.connection, verb, body, answer)

    async def _catalog(self) -> Catalog:
        if (store := await self._operations.cloud_store()) is None:
            raise NearcastError("no site of kind cloud with a store is registered: there is no catalog")
        catalog = Catalog(self._user.connection, store)
        await catalog.prepare()
        return catalog


def _as_file(dataset: str, records: Iterable[dict[str, Any]]) -> RecordFile:
    """Records as the data cluster reads files: a JSON object per line."""
    check_identifier(dataset, "dataset")
    try:
        lines = [JSON.encode(record) + b"\n" for record in records]
    except (ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"dataset {dataset}: a record is not as JSON has it: {error}") from None
    return RecordFile(dataset, f"{dataset}.jsonl", b"".join(lines))
