"""The registry of datasets, channels and subscriptions: key-value buckets in the cloud's store."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from nats.errors import Error as NatsError
from nats.js.api import KeyValueConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import (
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
    NotFoundError,
)

from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec
from nearcast.domain.errors import InputError, NearcastError
from nearcast.wire import subjects
from nearcast.wire.registration import STATE_BUCKET
from nearcast.wire.stream import StreamReader, bucket_stream

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from nearcast.wire.connection import Connection
    from nearcast.wire.stream import Entry

__all__ = ["CHANNELS", "DATASETS", "REPORTS_STREAM", "SUBSCRIPTIONS", "Registry"]

DATASETS, CHANNELS, SUBSCRIPTIONS = "nearcast-datasets", "nearcast-channels", "nearcast-subscriptions"
REPORTS_STREAM = "nearcast-reports"
_HOUR = 3600.0
_TRIES, _TRY_AGAIN = 30, 0.1
T = TypeVar("T", DatasetSpec, ChannelSpec)


class Registry:
    """Reads and changes the registry through any broker. store: the site whose store keeps it."""

    def __init__(self, connection: Connection, store: str, timeout: float = 10.0) -> None:
        self._js = connection.jetstream(domain=store, timeout=timeout)
        self._store = store
        self._buckets: dict[str, KeyValue] = {}
        self._reader = StreamReader(connection, subjects.store_api(store))

    async def prepare(self) -> None:
        """Make the buckets that are not there yet."""
        for bucket in (DATASETS, CHANNELS, SUBSCRIPTIONS):
            try:
                await self._bucket(bucket)
            except InputError:
                try:
                    config = KeyValueConfig(bucket=bucket, history=1, storage=StorageType.FILE, direct=True)
                    await self._js.create_key_value(config)
                except (NatsError, TimeoutError) as error:
                    raise NearcastError(f"the store of {self._store} cannot keep the registry: {error}") from error

    async def keep_reports(self) -> None:
        """Keep the last hour of the sites' reports. The store does not answer them: that is the coordinator's part."""
        await self._make_stream(REPORTS_STREAM, subjects.REPORTS, _HOUR, no_ack=True)

    async def knows_clients(self) -> bool:
        """Whether a coordinator keeps a registry of clients in this store."""
        try:
            await self._js.stream_info(bucket_stream(STATE_BUCKET))
        except NotFoundError:
            return False
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"the store of {self._store} does not answer: {error or 'timed out'}") from error
        return True

    async def datasets(self) -> dict[str, DatasetSpec]:
        """All datasets by name."""
        return await self._all(DATASETS, DatasetSpec)

    async def channels(self) -> dict[str, ChannelSpec]:
        """All channels by name."""
        return await self._all(CHANNELS, ChannelSpec)

    async def dataset(self, name: str) -> DatasetSpec | None:
        """A dataset, or nothing."""
        return await self._one(DATASETS, name, DatasetSpec)

    async def channel(self, name: str) -> ChannelSpec | None:
        """A channel, or nothing."""
        return await self._one(CHANNELS, name, ChannelSpec)

    async def add_dataset(self, spec: DatasetSpec) -> None:
        """Add a dataset; one that is fed gets a stream that takes its records from now on."""
        if await self.dataset(spec.name) is not None:
            raise InputError(f"dataset {spec.name!r} is there already; drop it first, or choose another name")
        if spec.source == subjects.feed(spec.name):
            await self._make_stream(subjects.feed_stream(spec.name), subjects.feed(spec.name), spec.keep_seconds)
        await self._put(DATASETS, spec.name, replace(spec, created=time.time_ns() // 1000))

    async def replace_dataset(self, spec: DatasetSpec) -> None:
        """Change a dataset's entry, for example to its next version."""
        await self._put(DATASETS, spec.name, spec)

    async def drop_dataset(self, name: str) -> None:
        """Drop a dataset that no channel reads."""
        if await self.dataset(name) is None:
            raise InputError(f"there is no dataset {name!r}; there are: {', '.join(await self.datasets()) or 'none'}")
        users = [c.name for c in (await self.channels()).values() if re.search(rf"\b{name}\b", c.query, re.IGNORECASE)]
        if users:
            raise InputError(f"dataset {name!r} is read by channel {', '.join(sorted(users))}; drop that first")
        await self._remove(DATASETS, name)
        await self._drop_stream(subjects.feed_stream(name))

    async def add_channel(self, spec: ChannelSpec) -> None:
        """Add a channel; its results are kept from now on."""
        if await self.channel(spec.name) is not None:
            raise InputError(f"channel {spec.name!r} is there already; drop it first, or choose another name")
        pattern = subjects.channel_results(spec.name, "*")
        await self._make_stream(subjects.channel_stream(spec.name), pattern, spec.keep_seconds)
        await self._put(CHANNELS, spec.name, replace(spec, created=time.time_ns() // 1000))

    async def drop_channel(self, name: str) -> None:
        """Drop a channel with its results; its subscribers get no more."""
        if await self.channel(name) is None:
            raise InputError(f"there is no channel {name!r}; there are: {', '.join(await self.channels()) or 'none'}")
        await self._remove(CHANNELS, name)
        await self._drop_stream(subjects.channel_stream(name))

    async def subscribe(self, channel: str, key: str, site: str, values: Mapping[str, Any]) -> None:
        """A site has subscribers for these values."""
        await self._store_value(SUBSCRIPTIONS, f"{channel}.{key}.{site}", msgspec.json.encode(values))

    async def unsubscribe(self, channel: str, key: str, site: str) -> None:
        """A site has no more subscribers for these values."""
        await self._remove(SUBSCRIPTIONS, f"{channel}.{key}.{site}")

    async def held_by(self, site: str) -> list[str]:
        """The subscriptions of a site, as `<channel>.<key>`."""
        try:
            keys = await self._entries(SUBSCRIPTIONS)
        except InputError:  # nothing was ever added
            return []
        # A site's lease ends with its name, too.
        return [key.removesuffix(f".{site}") for key in keys if key.endswith(f".{site}") and key.count(".") == 2]

    async def renew(self, site: str) -> None:
        """A site is there and answers for its subscriptions."""
        await self._store_value(SUBSCRIPTIONS, f"lease.{site}", b"")

    async def _bucket(self, name: str) -> KeyValue:
        if name not in self._buckets:
            try:
                self._buckets[name] = await self._js.key_value(name)
            except BucketNotFoundError:
                raise InputError(
                    "no datasets and channels were ever added here; begin with: nearcast dataset add"
                ) from None
            except (NatsError, TimeoutError) as error:
                raise NearcastError(f"the store of {self._store} does not answer: {error or 'timed out'}") from error
        return self._buckets[name]

    async def _entries(self, bucket: str) -> dict[str, Entry]:
        await self._bucket(bucket)
        return await self._reader.read_bucket(bucket)

    async def _all(self, bucket: str, kind: type[T]) -> dict[str, T]:
        entries = await self._entries(bucket)
        found = [msgspec.json.decode(entries[name].payload, type=kind) for name in sorted(entries)]
        return {spec.name: spec for spec in found}

    async def _one(self, bucket: str, name: str, kind: type[T]) -> T | None:
        try:
            entry = await (await self._bucket(bucket)).get(name)
        except KeyNotFoundError:
            return None
        except (ValueError, NatsError, TimeoutError) as error:
            raise NearcastError(f"the registry cannot be read for {name!r}: {error or 'timed out'}") from error
        return msgspec.json.decode(entry.value or b"", type=kind)

    async def _put(self, bucket: str, name: str, spec: DatasetSpec | ChannelSpec) -> None:
        try:
            await self._store_value(bucket, name, msgspec.json.encode(spec))
        except (KeyWrongLastSequenceError, NatsError, TimeoutError) as error:
            raise NearcastError(f"the registry cannot be changed for {name!r}: {error or 'timed out'}") from error

    async def _store_value(self, bucket: str, key: str, value: bytes) -> None:
        await self._publish(bucket, key, value, {})

    async def _remove(self, bucket: str, key: str) -> None:
        await self._publish(bucket, key, b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})

    async def _publish(self, bucket: str, key: str, value: bytes, headers: dict[str, str]) -> None:
        """Change an entry. Plain $KV subjects do not cross into a store's domain; below its API prefix they do.
        A bucket that was just made may take a moment to be known at the broker."""
        await self._bucket(bucket)
        subject = f"{subjects.store_api(self._store)}.$KV.{bucket}.{key}"
        for left in range(_TRIES - 1, -1, -1):
            try:
                await self._js.publish(subject, value, headers=headers or None)
                return
            except NoStreamResponseError:
                if not left:
                    raise
                await asyncio.sleep(_TRY_AGAIN)

    async def _make_stream(self, name: str, pattern: str, keep: float | None, no_ack: bool = False) -> None:
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
            raise NearcastError(f"the store of {self._store} made no stream {name}: {error or 'timed out'}") from error

    async def _drop_stream(self, name: str) -> None:
        try:
            await self._js.delete_stream(name)
        except NotFoundError:
            pass
        except (NatsError, TimeoutError) as error:
            raise NearcastError(f"the store of {self._store} kept stream {name}: {error or 'timed out'}") from error
