"""Topics: their names, the patterns that stand for many of them, and what is promised for each."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from nearcast.domain.ranges import Name, TopicPattern
from nearcast.errors import InputError

__all__ = [
    "TopicError",
    "TopicSpec",
    "check_pattern",
    "check_topic",
    "covers",
    "matches",
    "overlaps",
    "publisher_level",
]

_LEVEL = re.compile(r"[^\s.*>+#/$\x00-\x1f\ud800-\udfff][^\s.*>+#/\x00-\x1f\ud800-\udfff]*")
_LONGEST = 200
_LONGEST_KEPT = 9_000_000_000  # a store counts nanoseconds in 63 bits
_KEPT = f"above 0 to {_LONGEST_KEPT} seconds; leave it out to keep everything"


class TopicError(InputError):
    """A topic name or pattern that cannot be one."""


def check_topic(topic: str) -> str:
    """Return the topic if it can be published to; raise TopicError otherwise."""
    for level in _levels(topic):
        if not _LEVEL.fullmatch(level):
            raise TopicError(f"topic {topic!r}: {_fault(level)}; levels are separated by dots, as in gps.north.car7")
    return topic


def check_pattern(pattern: str) -> str:
    """Return the pattern if it can be subscribed to; `*` stands for one level, a last `>` for all further ones."""
    levels = _levels(pattern)
    for position, level in enumerate(levels):
        if level == "*" or (level == ">" and position == len(levels) - 1):
            continue
        if not _LEVEL.fullmatch(level):
            fault = "`>` may only be the last level" if level == ">" else _fault(level)
            raise TopicError(f"topic pattern {pattern!r}: {fault}")
    return pattern


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern stands for a topic."""
    return overlaps(pattern, topic)


def overlaps(one: str, other: str) -> bool:
    """Whether some topic matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">" or b == ">":
            return True
        if a != b and a != "*" and b != "*":
            return False
    # `a.>` needs at least one level after `a`.
    return len(left) == len(right)


def covers(wide: str, narrow: str) -> bool:
    """Whether every topic of the narrow pattern also matches the wide one."""
    left, right = wide.split("."), narrow.split(".")
    for a, b in zip(left, right, strict=False):
        if a == ">":
            return True
        if b == ">" or (a not in ("*", b)):
            return False
    return len(left) == len(right)


def publisher_level(topic: str) -> str:
    """The publisher that a topic or pattern names: `car7` of `gps.@car7`, nothing without a level that begins with @.

    A broker judges subjects only. By such a level it can judge who publishes, too, if each user is given its own.
    """
    if "@" not in topic:
        return ""
    return next((level[1:] for level in topic.split(".") if level.startswith("@")), "")


Sites = Annotated[tuple[Name, ...], Meta(max_length=1000)]


class TopicSpec(msgspec.Struct, frozen=True):
    """A topic, or a family of topics when `name` is a pattern: who manages it and what is kept.

    managed_by: the sites that run its processor; none means the topic is delivered as published.
    replicas:   the sites whose stores keep it. quorum: how many of them must have it before `publish` returns.
    catch_up:   which of the publications that were missed are processed first, when there are many.
    ordered:    newer publications of a source wait until an older one that is missing was processed.
    max_attempts: how often a publication is given to its processor before it becomes a dead letter.
    max_topics: of a family, at each worker: publications of more topics than these become dead letters.
    """

    name: TopicPattern
    managed_by: Sites = ()
    replicas: Sites = ()
    quorum: Annotated[int, Meta(ge=0)] = 0
    bound_ms: Annotated[float, Meta(gt=0)] | None = None
    keep_seconds: Annotated[float, Meta(gt=0, le=_LONGEST_KEPT, description=_KEPT)] | None = None
    keep_bytes: Annotated[int, Meta(gt=0)] | None = None
    catch_up: Literal["oldest", "newest"] = "oldest"
    ordered: bool = False
    max_attempts: Annotated[int, Meta(ge=1)] = 5
    max_topics: Annotated[int, Meta(ge=1)] | None = None

    @property
    def processed(self) -> bool:
        """Whether subscribers get notifications made by a processor instead of the publications."""
        return bool(self.managed_by)

    @property
    def durable(self) -> bool:
        """Whether stores keep it."""
        return bool(self.replicas)


def _levels(name: str) -> list[str]:
    if not isinstance(name, str) or not name:
        raise TopicError(f"topic {name!r}: a name is needed")
    if len(name) > _LONGEST:
        raise TopicError(f"topic {name[:20]!r}…: {len(name)} characters; at most {_LONGEST} are allowed")
    return name.split(".")


def _fault(level: str) -> str:
    if not level:
        return "a level is empty"
    if level in ("*", ">"):
        return f"{level!r} is a wildcard, allowed only in subscriptions"
    if level.startswith("$"):
        return f"level {level!r} starts with $, which is reserved"
    return f"level {level!r} has a character that is not allowed (no spaces, / + # * > or control characters)"
