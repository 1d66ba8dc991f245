"""Sites, topics, clients and journalled moves: read from the coordinators' state once, written through to it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from nearcast.coordinator.moves import Move
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode
from nearcast.nats.kv import ConflictError
from nearcast.protocol.control import TopicRecord
from nearcast.protocol.registration import ClientRecord, SiteInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.coordinator.state import CoordinatorState
    from nearcast.domain.topic import TopicSpec
    from nearcast.domain.worker_id import WorkerId

__all__ = ["Registry"]

_log = logging.getLogger(__name__)
_LONGEST_IDENTITY = 64


class Registry:
    """The leader's copy of the state. Every change is written by compare-and-set before it is visible here."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self.sites: dict[str, SiteInfo] = {}
        self.topics: dict[str, TopicRecord] = {}
        self.clients: dict[str, ClientRecord] = {}
        self.moves: dict[str, Move] = {}
        self._changes: dict[str, tuple[int, TopicRecord]] = {}  # all records, removed ones too, with their revisions
        self.revision = 0  # of the latest change of a topic
        self.bad_entries: dict[str, str] = {}  # keys of the state that cannot be read, and why
        self.identity = ""  # of the state: another one after it was lost and restored
        self.clients_version = 0

    async def load(self) -> None:
        """Read the state. An entry that cannot be read is skipped: the site or client that it is of writes it again."""
        for key, entry in (await self._state.read_all()).items():
            try:
                self._load_entry(key, entry.payload, entry.sequence)
            except InputError as error:
                self.bad_entries[key] = str(error)
                _log.error("skipped the entry %s of the registry: %s", key, error)
        self.clients_version += 1

    def _load_entry(self, key: str, value: bytes, revision: int) -> None:
        match key.partition(".")[0]:
            case "identity":
                self.identity = value[:_LONGEST_IDENTITY].decode(errors="replace")
            case "site":
                site: SiteInfo = decode(value, SiteInfo)
                _require_key(key, f"site.{site.name}")
                self.sites[site.name] = site
            case "topic":
                record: TopicRecord = decode(value, TopicRecord)
                _require_key(key, _topic_key(record.spec.name))
                self._apply(record, revision)
            case "client":
                client: ClientRecord = decode(value, ClientRecord)
                _require_key(key, f"client.{client.name}")
                self.clients[client.name] = client
            case "move":
                move: Move = decode(value, Move)
                _require_key(key, f"move.{move.id}")
                self.moves[move.id] = move

    def topic(self, name: str) -> TopicRecord:
        """A topic's record."""
        if name not in self.topics:
            raise InputError(f"topic {name!r} is not registered; `nearcast topic ls` shows those that are")
        return self.topics[name]

    def client(self, name: str) -> ClientRecord:
        """A client's record."""
        if name not in self.clients:
            raise InputError(f"client {name!r} is not registered; `nearcast client ls` shows those that are")
        return self.clients[name]

    def site(self, name: str) -> SiteInfo:
        """A site's description."""
        if name not in self.sites:
            known = ", ".join(sorted(self.sites)) or "none"
            raise InputError(f"site {name!r} is not registered; there are: {known}")
        return self.sites[name]

    async def put_site(self, site: SiteInfo, topics: Iterable[TopicRecord] = ()) -> None:
        """Register a site, and the topics that are not registered yet, or in an older epoch: the state was lost."""
        if self.sites.get(site.name) != site:
            await self._state.write(f"site.{site.name}", site)
            self.sites[site.name] = site
        for record in topics:
            known = self._changes.get(record.spec.name)
            if known is None or known[1].epoch < record.epoch:
                await self.put_topic(record)

    async def put_topic(self, record: TopicRecord) -> None:
        """Write a topic's record."""
        key = _topic_key(record.spec.name)
        self._apply(record, await self._state.write(key, record))

    async def add_topic(self, spec: TopicSpec, members: tuple[WorkerId, ...]) -> None:
        """Register a topic. One that was removed before continues with its epochs."""
        previous = self._changes.get(spec.name)
        await self.put_topic(TopicRecord(spec, previous[1].epoch + 1 if previous else 1, members))

    async def remove_topic(self, name: str) -> None:
        """Mark a topic as removed; the sites that run it stop when they see the record."""
        record = self.topic(name)
        await self.put_topic(TopicRecord(record.spec, record.epoch + 1, (), "", removed=True))

    async def put_replicas(self, record: TopicRecord, replicas: tuple[str, ...]) -> None:
        """Change the stores of a topic; its members stay."""
        spec = msgspec.structs.replace(record.spec, replicas=replicas)
        await self.put_topic(msgspec.structs.replace(record, spec=spec, epoch=record.epoch + 1))

    async def reread_topic(self, name: str) -> TopicRecord | None:
        """Read a topic's record from the state again. None: the topic was removed."""
        found = await self._state.read(_topic_key(name))
        if found is None:
            self.topics.pop(name, None)
            return None
        record: TopicRecord = decode(found, TopicRecord)
        self._apply(record, self._state.revision_of(_topic_key(name)))
        return None if record.removed else record

    def changes_after(self, revision: int, limit: int) -> tuple[list[TopicRecord], int, bool]:
        """Records that changed after a revision, the last revision among them, and whether there are more."""
        later = sorted((entry for entry in self._changes.values() if entry[0] > revision), key=lambda entry: entry[0])
        page = later[:limit]
        reached = page[-1][0] if page else max(revision, self.revision)
        return [record for _, record in page], reached, len(later) > limit

    def _apply(self, record: TopicRecord, revision: int) -> None:
        name = record.spec.name
        self._changes[name] = (revision, record)
        self.revision = max(self.revision, revision)
        if record.removed:
            self.topics.pop(name, None)
        else:
            self.topics[name] = record

    async def put_client(self, client: ClientRecord) -> None:
        """Write a client's record."""
        if self.clients.get(client.name) == client:
            return
        try:
            await self._state.write(f"client.{client.name}", client)
        except ConflictError:  # the latest record of a client is right, whoever wrote the one before
            await self._state.read(f"client.{client.name}")
            await self._state.write(f"client.{client.name}", client)
        self.clients[client.name] = client
        self.clients_version += 1

    async def remove_client(self, name: str) -> None:
        """Forget a client."""
        if name in self.clients:
            await self._state.erase(f"client.{name}")
            del self.clients[name]
            self.clients_version += 1

    async def journal(self, move: Move) -> None:
        """Write a move to the journal, before it is executed."""
        await self._state.write(f"move.{move.id}", move)
        self.moves[move.id] = move

    async def erase_move(self, move: Move) -> None:
        """Remove a move from the journal."""
        if move.id in self.moves:
            await self._state.erase(f"move.{move.id}")
            del self.moves[move.id]


def _require_key(key: str, expected: str) -> None:
    if key != expected:
        raise MalformedError(f"its value belongs under {expected}")


def _topic_key(topic: str) -> str:
    return f"topic.{subjects.stream_name(topic)}"
