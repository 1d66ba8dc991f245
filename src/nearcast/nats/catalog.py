"""The catalog of datasets, channels and subscriptions: key-value buckets in the cloud's store."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import NotFoundError

from nearcast.domain.channel import ChannelSpec, check_channel
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode, drop
from nearcast.nats.kv import Bucket, BucketFollower, BucketNotFoundError

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection
    from nearcast.nats.streams import StoredEntry

__all__ = ["CHANNELS", "CONFIRMED", "DATASETS", "FAULTS", "REPORTS_STREAM", "SUBSCRIPTIONS", "Catalog", "decode_spec"]

DATASETS, CHANNELS, SUBSCRIPTIONS = "nearcast-datasets", "nearcast-channels", "nearcast-subscriptions"
FAULTS = "nearcast-channel-faults"
"""Why channels (by name) and subscriptions (`<channel>.<key>`) are switched off; the data cluster writes it."""
CONFIRMED = "confirmed"
"""The key of the subscriptions' bucket under which the data cluster says which revision it has in its tables."""
REPORTS_STREAM = "nearcast-reports"
_HOUR = 3600.0
_TIMEOUT = 10.0
_EMPTY = "no datasets and channels were ever added here; begin with: nearcast dataset add"
T = TypeVar("T", DatasetSpec, ChannelSpec)


def decode_spec(name: str, payload: bytes, kind: type[T]) -> T:
    """A dataset or channel of the catalog. InputError for what cannot be one, whoever wrote it."""
    spec: T = decode(payload, kind)
    if spec.name != name:
        raise MalformedError(f"the entry is of {spec.name[:63]!r}")
    if isinstance(spec, DatasetSpec):
        check_dataset(spec)
    else:
        check_channel(spec)
    return spec


class Catalog:
    """Reads and changes the catalog through any broker. store: the site whose store holds it."""

    def __init__(self, connection: Connection, store: str) -> None:
        self._js = connection.jetstream(domain=store, timeout=_TIMEOUT)
        self._store = store
        names = (DATASETS, CHANNELS, SUBSCRIPTIONS, FAULTS, subjects.STATE_BUCKET)
        self._buckets = {name: Bucket(connection, store, name, timeout=_TIMEOUT) for name in names}

    async def prepare(self) -> None:
        """Create the buckets that do not exist yet."""
        for bucket in (DATASETS, CHANNELS, SUBSCRIPTIONS, FAULTS):
            await self._buckets[bucket].create()

    async def exists(self) -> bool:
        """Whether a dataset or channel was ever added here."""
        return await self._buckets[DATASETS].exists()

    def follow(self, bucket: str) -> BucketFollower:
        """Follows the changes of one of the buckets, from its beginning."""
        return BucketFollower(self._buckets[bucket])

    async def keep_reports(self) -> None:
        """Store the last hour of the sites' reports. The store does not acknowledge them; the coordinator answers."""
        await self._create_stream(REPORTS_STREAM, subjects.REPORTS, _HOUR, no_ack=True)

    async def knows_clients(self) -> bool:
        """Whether a coordinator has its registry of clients in this store."""
        return await self._buckets[subjects.STATE_BUCKET].exists()

    async def datasets(self) -> dict[str, DatasetSpec]:
        """All datasets by name."""
        return await self._all(DATASETS, DatasetSpec)

    async def channels(self) -> dict[str, ChannelSpec]:
        """All channels by name."""
        return await self._all(CHANNELS, ChannelSpec)

    async def dataset(self, name: str) -> DatasetSpec | None:
        """A dataset, or None."""
        return await self._one(DATASETS, name, DatasetSpec)

    async def channel(self, name: str) -> ChannelSpec | None:
        """A channel, or None."""
        return await self._one(CHANNELS, name, ChannelSpec)

    async def add_dataset(self, spec: DatasetSpec) -> None:
        """Add a dataset; one that is fed gets a stream for its records."""
        if await self.dataset(spec.name) is not None:
            raise InputError(f"dataset {spec.name!r} exists already; remove it first, or choose another name")
        if spec.source == subjects.feed(spec.name):
            await self._create_stream(subjects.feed_stream(spec.name), subjects.feed(spec.name), spec.keep_seconds)
        await self._put(DATASETS, replace(spec, created=time.time_ns() // 1000))

    async def replace_dataset(self, spec: DatasetSpec) -> None:
        """Replace a dataset's entry, for example by its next version."""
        await self._put(DATASETS, spec)

    async def remove_dataset(self, name: str) -> None:
        """Remove a dataset that no channel reads."""
        if await self._buckets[DATASETS].get(name) is None:
            raise InputError(f"there is no dataset {name!r}; there are: {', '.join(await self.datasets()) or 'none'}")
        users = [c.name for c in (await self.channels()).values() if re.search(rf"\b{name}\b", c.query, re.IGNORECASE)]
        if users:
            raise InputError(f"dataset {name!r} is read by channel {', '.join(sorted(users))}; remove that first")
        await self._buckets[DATASETS].remove(name)
        await self._delete_stream(subjects.feed_stream(name))

    async def add_channel(self, spec: ChannelSpec) -> None:
        """Add a channel, and a stream for its results."""
        if await self.channel(spec.name) is not None:
            raise InputError(f"channel {spec.name!r} exists already; remove it first, or choose another name")
        pattern = subjects.channel_results(spec.name, "*")
        await self._create_stream(subjects.channel_stream(spec.name), pattern, spec.keep_seconds)
        await self._put(CHANNELS, replace(spec, created=time.time_ns() // 1000))

    async def remove_channel(self, name: str) -> None:
        """Remove a channel with its results; its subscribers get no more."""
        if await self._buckets[CHANNELS].get(name) is None:
            raise InputError(f"there is no channel {name!r}; there are: {', '.join(await self.channels()) or 'none'}")
        await self._buckets[CHANNELS].remove(name)
        await self._delete_stream(subjects.channel_stream(name))

    async def subscribe(self, channel: str, key: str, site: str, values: Mapping[str, Any]) -> int:
        """Note that a site has subscribers for these values; returns the revision that the data cluster confirms."""
        return await self._buckets[SUBSCRIPTIONS].put(f"{channel}.{key}.{site}", msgspec.json.encode(values))

    async def note_fault(self, channel: str, key: str, reason: str) -> None:
        """Note why a channel, or with a key one of its subscriptions, is switched off or failed once."""
        await self._buckets[FAULTS].put(f"{channel}.{key}" if key else channel, reason.encode())

    async def clear_fault(self, name: str) -> None:
        """Forget a fault of a channel, or of `<channel>.<key>`."""
        await self._buckets[FAULTS].remove(name)

    async def fault(self, channel: str, key: str) -> str:
        """Why a subscription is switched off; empty when it is not."""
        try:
            entry = await self._buckets[FAULTS].get(f"{channel}.{key}")
        except BucketNotFoundError:
            return ""
        return "" if entry is None else entry.payload.decode(errors="replace")

    async def faults(self) -> dict[str, str]:
        """All faults by channel or `<channel>.<key>`."""
        try:
            entries = await self._buckets[FAULTS].read_all()
        except BucketNotFoundError:
            return {}
        return {name: entries[name].payload.decode(errors="replace") for name in sorted(entries)}

    async def confirm(self, revision: int) -> None:
        """The data cluster answers all subscriptions up to this revision from now on."""
        await self._buckets[SUBSCRIPTIONS].put(CONFIRMED, b"%d" % revision)

    async def confirmed(self) -> int:
        """The revision that the data cluster confirmed last."""
        entry = await self._buckets[SUBSCRIPTIONS].get(CONFIRMED)
        return int(entry.payload) if entry is not None and entry.payload.isdigit() else 0

    async def unsubscribe(self, channel: str, key: str, site: str) -> None:
        """Note that a site has no more subscribers for these values."""
        await self._buckets[SUBSCRIPTIONS].remove(f"{channel}.{key}.{site}")

    async def held_by(self, site: str) -> list[str]:
        """The subscriptions of a site, as `<channel>.<key>`."""
        try:
            keys = await self._entries(SUBSCRIPTIONS)
        except InputError:  # nothing was ever added
            return []
        return [key.removesuffix(f".{site}") for key in keys if key.endswith(f".{site}") and key.count(".") == 2]

    async def renew(self, site: str) -> None:
        """Renew the lease of a site on its subscriptions."""
        await self._buckets[SUBSCRIPTIONS].put(f"lease.{site}", b"")

    async def _entries(self, bucket: str) -> dict[str, StoredEntry]:
        try:
            return await self._buckets[bucket].read_all()
        except BucketNotFoundError:
            raise InputError(_EMPTY) from None

    async def _all(self, bucket: str, kind: type[T]) -> dict[str, T]:
        entries = await self._entries(bucket)
        found: dict[str, T] = {}
        for name in sorted(entries):
            try:
                found[name] = decode_spec(name, entries[name].payload, kind)
            except InputError as error:
                drop("catalog entry", f"{bucket}/{name}", error)
        return found

    async def _one(self, bucket: str, name: str, kind: type[T]) -> T | None:
        try:
            entry = await self._buckets[bucket].get(name)
        except BucketNotFoundError:
            raise InputError(_EMPTY) from None
        return None if entry is None else decode_spec(name, entry.payload, kind)

    async def _put(self, bucket: str, spec: DatasetSpec | ChannelSpec) -> None:
        await self._buckets[bucket].put(spec.name, msgspec.json.encode(spec))

    async def _create_stream(self, name: str, pattern: str, keep: float | None, no_ack: bool = False) -> None:
        config = StreamConfig(
            name=name,
            subjects=[pattern],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=keep or 7 * 24 * _HOUR,
            allow_direct=True,
            duplicate_window=min(120.0, keep or 120.0),
            no_ack=no_ack,
        )
        try:
            await self._js.add_stream(config)
        except (NatsError, TimeoutError) as error:
            reason = error or "timed out"
            raise NearcastError(f"site {self._store}: stream {name} cannot be created: {reason}") from error

    async def _delete_stream(self, name: str) -> None:
        try:
            await self._js.delete_stream(name)
        except NotFoundError:
            pass
        except (NatsError, TimeoutError) as error:
            reason = error or "timed out"
            raise NearcastError(f"site {self._store}: stream {name} cannot be deleted: {reason}") from error
