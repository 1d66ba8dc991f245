"""What is asked of and answered by the services of a site."""

from __future__ import annotations

from typing import Any

import msgspec

from nearcast.domain.topic import TopicSpec

__all__ = [
    "Advertisement",
    "ChannelAnswer",
    "ChannelRequest",
    "ConfirmAnswer",
    "ConfirmRequest",
    "DatasetRequest",
    "HistoryPage",
    "HistoryRequest",
    "RenewAnswer",
    "RenewRequest",
    "StoredMessage",
    "StoresAnswer",
    "TailPage",
    "TailRequest",
    "Tip",
    "TopicsAnswer",
    "TopicsRequest",
]


class TopicsRequest(msgspec.Struct, frozen=True):
    """Which topics are configured within a pattern, or which stores hold them?"""

    pattern: str


class TopicsAnswer(msgspec.Struct, frozen=True):
    """The configured topics that overlap the pattern. synced: sites whose stores write through to their disks."""

    topics: list[TopicSpec] = []
    synced: list[str] = []


class StoresAnswer(msgspec.Struct, frozen=True):
    """The sites whose stores advertise a topic, and whether the configuration says that some should.

    behind: those of them that lack something, or cannot know that they do not.
    """

    stores: list[str] = []
    configured: bool = False
    behind: list[str] = []


class Advertisement(msgspec.Struct, frozen=True):
    """A store tells what it holds. `fresh`: it has just come up and asks the others to tell, too.

    behind: topics of which it lacks something, or cannot know that it does not.
    """

    site: str
    topics: list[str]
    fresh: bool = False
    behind: list[str] = []


class Tip(msgspec.Struct, frozen=True, array_like=True):
    """What a store has of a topic's last seconds, on `tip.<topic>` every 2 s while the topic is active, as msgpack.

    It is of what subscribers get: notifications of a processed topic, else publications, of one topic of a family.
    behind: the store lacks something itself. second: the first of these seconds of message time (since 1970).
    counts, digests: of each second; a digest is the sum of `id_hash` modulo 2**64. The last two seconds still change.
    late: ids of messages that were stored since then, though their time is before the first second; the newest 256.
    counted: for so many seconds all that was stored is told, at most 30; less after the store or its agent restarted.
    """

    site: str
    behind: bool
    second: int
    counts: list[int]
    digests: list[int]
    late: list[bytes] = []
    counted: float = 30.0


Position = tuple[int, bytes]
"""A place in a topic's history: time in microseconds, and id. The same at every store."""


class HistoryRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One page of past messages, please. Their order is that of (time, id), the same at every store.

    results: of a channel, with `<channel>.<key>` for the topic. cursor: where the page before ended.
    notifications: what subscribers were told, instead of what was published.
    before: where the backward search for the `last` messages had got to.
    stored_after: only what this store got after that sequence; of use at one store only.
    incomplete: a store that is behind may answer, too.
    Times are those of messages, in microseconds since 1970.
    """

    topic: str
    notifications: bool = False
    since_us: int | None = None
    until_us: int | None = None
    last: int | None = None
    where: list[object] | None = None
    cursor: Position | None = None
    before: Position | None = None
    results: bool = False
    stored_after: int = 0
    incomplete: bool = False


class TailRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store appended lately, in the order in which it did, page by page; answered by a TailPage.

    topic, notifications, results: as in a HistoryRequest. within_us: by the store's own clock, so that the asker's does
    not matter. cursor: where the page before ended.
    """

    topic: str
    within_us: int
    notifications: bool = False
    results: bool = False
    cursor: int | None = None


class StoredMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as a store returns it."""

    topic: str
    id: bytes
    payload: bytes
    time_us: int


class HistoryPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Matches in order, and where to go on; no cursor means that the end was reached.

    end: the store's last sequence when this page was read; a later request may ask for what came after it.
    before, remaining: the backward search is not over; ask again with these.
    incomplete: the store is behind. held: how many messages it has then, of the whole topic.
    Error 400: the request is wrong wherever it is asked. Any other error: this store cannot answer, another one may.
    """

    messages: list[StoredMessage] = []
    cursor: Position | None = None
    end: int = 0
    before: Position | None = None
    remaining: int = 0
    incomplete: bool = False
    held: int = 0


class TailPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages in the order of the store, and the sequence where to go on; no cursor means that the end was reached."""

    messages: list[StoredMessage] = []
    cursor: int | None = None


class ChannelRequest(msgspec.Struct, frozen=True):
    """A client subscribes to a channel."""

    client: str
    channel: str
    params: dict[str, Any]


class ChannelAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The key under which results come, and the site whose store keeps them (of a dataset: its records).

    revision: what to wait for (`ConfirmRequest`) until the subscription is active.
    """

    key: str = ""
    store: str = ""
    revision: int = 0


class ConfirmRequest(msgspec.Struct, frozen=True):
    """Wait until the data cluster has the subscriptions up to this revision in its tables."""

    revision: int


class ConfirmAnswer(msgspec.Struct, frozen=True):
    """Whether it has; if not, ask again."""

    confirmed: bool


class RenewRequest(msgspec.Struct, frozen=True):
    """A client still has (or leaves) these subscriptions, each named `<channel>.<key>`."""

    client: str
    names: list[str]


class RenewAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Those that the agent does not know and the client must make anew."""

    unknown: list[str] = []


class DatasetRequest(msgspec.Struct, frozen=True):
    """Does this dataset take records?"""

    dataset: str
