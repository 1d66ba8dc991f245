"""What the stores have at the end: read from each stream with plain NATS, and once more as a client's `history()`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

import nats
from nearcast.client import connect
from nearcast.errors import NearcastError
from nearcast.nats.connection import open_connection
from nearcast.nats.coordinator_rpc import call_coordinator

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

    from nearcast.lab.chaos.ledger import LedgerFile

__all__ = ["dump_history", "dump_replicas", "dump_store"]

_BATCH = 500
_LIMIT = 120.0
_PREFIXES = {"pub": "publication", "ntf": "notification", "dlq": "dead letter"}


async def dump_store(url: str, site: str, ledger: LedgerFile) -> None:
    """Note every message of a site's store, and that all were read."""
    try:
        async with asyncio.timeout(_LIMIT):
            connection = await nats.connect(url, connect_timeout=5, max_reconnect_attempts=3)
            try:
                stream = connection.jetstream(timeout=10)
                for info in await stream.streams_info():
                    name, subjects = info.config.name or "", info.config.subjects or []
                    if any(subject.partition(".")[0] in _PREFIXES for subject in subjects):
                        await _dump_stream(stream, name, info.state.last_seq, site, ledger)
                ledger.note("store read", site=site)
            finally:
                await connection.close()
    except (NatsError, OSError, TimeoutError) as error:
        ledger.note("store not read", site=site, reason=f"{type(error).__name__}: {error}")


async def _dump_stream(stream: JetStreamContext, name: str, last: int, site: str, ledger: LedgerFile) -> None:
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE, mem_storage=True)
    reader = await stream.pull_subscribe("", stream=name, config=config)
    sequence = 0
    try:
        while sequence < last:
            try:
                messages = await reader.fetch(_BATCH, timeout=2)
            except TimeoutError:
                break  # the last ones were removed: there is nothing more
            for message in messages:
                sequence = message.metadata.sequence.stream
                _note_stored(message, sequence, site, ledger)
    finally:
        await reader.unsubscribe()


def _note_stored(message: Msg, sequence: int, site: str, ledger: LedgerFile) -> None:
    prefix, _, topic = message.subject.partition(".")
    if prefix == "mrk":
        mark = msgspec.msgpack.decode(message.data)
        if isinstance(mark, dict):
            ledger.note("mark", site=site, topic=topic, epoch=mark.get("epoch"), worker=str(mark.get("worker")))
        return
    kind = _PREFIXES.get(prefix)
    if kind is not None:
        ledger.note("stored", site=site, kind=kind, topic=topic, sequence=sequence, **_identity(message.data))


async def dump_history(url: str, site: str, topic: str, ledger: LedgerFile) -> None:
    """Note what a client whose home is this site is given as the topic's publications."""
    try:
        async with asyncio.timeout(_LIMIT), connect(url, name=f"dump-{site}", timeout=5) as client:
            history = client.history(topic, publications=True)
            async for message in history:
                ledger.note("history", site=site, topic=message.topic, **_identity(message.payload))
            ledger.note("history read", site=site, topic=topic, store=history.store, incomplete=history.incomplete)
    except (NearcastError, NatsError, OSError, TimeoutError) as error:
        ledger.note("history not read", site=site, topic=topic, reason=f"{type(error).__name__}: {error}")


def _identity(payload: bytes) -> dict[str, Any]:
    """Who published it and under which number, as the publisher wrote into the payload."""
    try:
        data = msgspec.json.decode(payload)
        return {"publisher": data["publisher"], "n": data["n"], "part": data.get("part", 0)}
    except (msgspec.DecodeError, KeyError, TypeError):
        return {"publisher": "", "n": 0, "part": 0}


async def dump_replicas(url: str, topics: list[str], ledger: LedgerFile) -> None:
    """Note which sites keep each topic now, as the coordinator says."""
    connection = await open_connection([url], name="dump", timeout=10)
    try:
        for topic in topics:
            try:
                info = await call_coordinator(connection, "topic", "info", {"name": topic}, dict[str, Any], 10.0)
                ledger.note("replicas", topic=topic, replicas=info["replicas"])
            except (NearcastError, KeyError) as error:
                ledger.note("history not read", site="coordinator", topic=topic, reason=str(error))
    finally:
        await connection.close()
