"""The stream of a topic in one of its stores: configured to take messages, to copy the past, or retired."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StorageType, StreamConfig, SubjectTransform

from nearcast.nats import subjects

if TYPE_CHECKING:
    from nearcast.domain.topic import TopicSpec
    from nearcast.nats.connection import Connection

__all__ = ["copying_config", "holds_topic", "is_copying", "is_retired", "keeps", "retired_config", "stream_config"]

_COPYING = "nearcast-copying"  # in the metadata of a stream whose past is not complete
_DUPLICATE_WINDOW = 120.0


def stream_config(topic: TopicSpec, site: str) -> StreamConfig:
    """The stream keeps publications and, for a processed topic, notifications, marks and dead letters.

    What is repaired comes on a subject of this site's own, and is stored under the subject it had.
    """
    kinds = [subjects.publications]
    if topic.processed:
        kinds += [subjects.notifications, subjects.marks, subjects.dead_letters, subjects.settlements]
    name = subjects.stream_name(topic.name)
    repaired = subjects.repair(site, name, ">")
    return StreamConfig(
        name=name,
        description=f"topic {topic.name}",
        subjects=[*(kind(topic.name) for kind in kinds), repaired],
        subject_transform=SubjectTransform(src=repaired, dest=">"),
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        max_age=topic.keep_seconds or 0,
        max_bytes=topic.keep_bytes or -1,
        allow_direct=True,
        duplicate_window=min(_DUPLICATE_WINDOW, topic.keep_seconds or _DUPLICATE_WINDOW),
    )


def copying_config(config: StreamConfig) -> StreamConfig:
    """The stream until repair has given it its past."""
    return config.evolve(metadata={_COPYING: "yes"})


def retired_config(config: StreamConfig) -> StreamConfig:
    """The stream keeps what it has and takes nothing more."""
    return config.evolve(subjects=[_retired_subject(config)], subject_transform=None)


def is_copying(config: StreamConfig) -> bool:
    """Whether the past is not complete yet."""
    return _COPYING in (config.metadata or {})


def is_retired(config: StreamConfig) -> bool:
    """Whether a stream takes nothing more."""
    return config.subjects == [_retired_subject(config)]


def keeps(config: StreamConfig, topic: str) -> bool:
    """Whether a stream takes the messages of a topic and has its past."""
    return subjects.publications(topic) in (config.subjects or []) and not is_copying(config)


async def holds_topic(connection: Connection, site: str, topic: str) -> bool:
    """Whether the store of a site answers, takes the messages of a topic and has its past."""
    try:
        manager = connection.jsm(prefix=subjects.store_api(site), timeout=5)
        return keeps((await manager.stream_info(subjects.stream_name(topic))).config, topic)
    except (NatsError, TimeoutError):
        return False


def _retired_subject(config: StreamConfig) -> str:
    return f"retired.{config.name}"
