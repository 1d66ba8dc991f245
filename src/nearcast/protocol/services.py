"""What is asked of and answered by the services of a site."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nearcast.domain.ranges import (
    AnyTopic,
    Count,
    Hash,
    Identifier,
    Microseconds,
    Name,
    NameOrNone,
    Seconds,
    Sequence,
    Text,
    TopicPattern,
)
from nearcast.domain.topic import TopicSpec
from nearcast.protocol.control import MOST_TOPICS
from nearcast.protocol.registration import MOST_OF_A_CLIENT

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


MessageId = Annotated[bytes, Meta(max_length=4096)]
SharedSubscription = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,62}\.[0-9a-f]{1,64}\Z")]
"""`<channel>.<key>`."""


class TopicsRequest(msgspec.Struct, frozen=True):
    """Which topics are configured within a pattern, or which stores hold them?"""

    pattern: AnyTopic


class TopicsAnswer(msgspec.Struct, frozen=True):
    """The configured topics that overlap the pattern. synced: sites whose stores write through to their disks."""

    topics: list[TopicSpec] = []
    synced: list[Name] = []


class StoresAnswer(msgspec.Struct, frozen=True):
    """The sites whose stores advertise a topic, and whether the configuration says that some should.

    behind: those of them that lack something, or cannot know that they do not.
    """

    stores: list[Name] = []
    configured: bool = False
    behind: list[Name] = []


class Advertisement(msgspec.Struct, frozen=True):
    """A store tells what it holds. `fresh`: it has just come up and asks the others to tell, too.

    behind: topics of which it lacks something, or cannot know that it does not.
    """

    site: Name
    topics: Annotated[list[TopicPattern], Meta(max_length=MOST_TOPICS)]
    fresh: bool = False
    behind: Annotated[list[TopicPattern], Meta(max_length=MOST_TOPICS)] = []


class Tip(msgspec.Struct, frozen=True, array_like=True):
    """What a store has of a topic's last seconds, on `tip.<topic>` every 2 s while the topic is active, as msgpack.

    It is of what subscribers get: notifications of a processed topic, else publications, of one topic of a family.
    behind: the store lacks something itself. second: the first of these seconds of message time (since 1970).
    counts, digests: of each second; a digest is the sum of `id_hash` modulo 2**64. The last two seconds still change.
    late: ids of messages that were stored since then, though their time is before the first second; the newest 256.
    counted: for so many seconds all that was stored is told, at most 30; less after the store or its agent restarted.
    """

    site: Name
    behind: bool
    second: Count
    counts: Annotated[list[Count], Meta(max_length=1000)]
    digests: Annotated[list[Hash], Meta(max_length=1000)]
    late: Annotated[list[MessageId], Meta(max_length=1000)] = []
    counted: Seconds = 30.0


Position = tuple[Microseconds, MessageId]
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

    topic: AnyTopic
    notifications: bool = False
    since_us: Microseconds | None = None
    until_us: Microseconds | None = None
    last: Count | None = None
    where: list[object] | None = None
    cursor: Position | None = None
    before: Position | None = None
    results: bool = False
    stored_after: Count = 0
    incomplete: bool = False


class TailRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a store appended recently, in the order in which it did, page by page; answered by a TailPage.

    topic, notifications, results: as in a HistoryRequest. within_us: by the store's own clock, so that the asker's does
    not matter. cursor: where the page before ended.
    """

    topic: AnyTopic
    within_us: Annotated[int, Meta(ge=0, le=1 << 53)]
    notifications: bool = False
    results: bool = False
    cursor: Annotated[int, Meta(ge=1, le=1 << 53)] | None = None


class StoredMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message as a store returns it."""

    topic: AnyTopic
    id: MessageId
    payload: bytes
    time_us: Microseconds


class HistoryPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Matches in order, and where to continue; no cursor means that the end was reached.

    end: the store's last sequence when this page was read; a later request may ask for what came after it.
    before, remaining: the backward search is not over; ask again with these.
    incomplete: the store is behind. held: how many messages it has then, of the whole topic.
    Error 400: the request is wrong wherever it is asked. Any other error: this store cannot answer, another one may.
    """

    messages: list[StoredMessage] = []
    cursor: Position | None = None
    end: Sequence = 0
    before: Position | None = None
    remaining: Count = 0
    incomplete: bool = False
    held: Count = 0


class TailPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Messages in the order of the store, and the sequence where to continue; no cursor at the end."""

    messages: list[StoredMessage] = []
    cursor: Count | None = None


class ChannelRequest(msgspec.Struct, frozen=True):
    """A client subscribes to a channel."""

    client: Name
    channel: Identifier
    params: Annotated[dict[str, Any], Meta(max_length=1000)]


class ChannelAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The key under which results come, and the site whose store keeps them (of a dataset: its records).

    revision: what to wait for (`ConfirmRequest`) until the subscription is active.
    """

    key: Text = ""
    store: NameOrNone = ""
    revision: Count = 0


class ConfirmRequest(msgspec.Struct, frozen=True):
    """Wait until the data cluster has the subscriptions up to this revision in its tables."""

    revision: Count


class ConfirmAnswer(msgspec.Struct, frozen=True):
    """Whether it has; if not, ask again."""

    confirmed: bool


class RenewRequest(msgspec.Struct, frozen=True):
    """A client still has (or leaves) these subscriptions, each named `<channel>.<key>`."""

    client: Name
    names: Annotated[list[SharedSubscription], Meta(max_length=MOST_OF_A_CLIENT)]


class RenewAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Those that the agent does not know and the client must make again."""

    unknown: list[SharedSubscription] = []


class DatasetRequest(msgspec.Struct, frozen=True):
    """Does this dataset take records?"""

    dataset: Identifier
