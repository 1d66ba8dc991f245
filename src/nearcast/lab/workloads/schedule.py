"""What clients do and when: typed events in NumPy columns, and how many deliveries they must cause."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["KINDS", "Event", "Kind", "Predicted", "Schedule", "ScheduleBuilder"]

# Events of the same instant happen in this order.
Kind = Literal["join", "move", "unsubscribe", "subscribe", "publish", "leave"]
KINDS: tuple[Kind, ...] = get_args(Kind)
JOIN, MOVE, UNSUBSCRIBE, SUBSCRIBE, PUBLISH, LEAVE = range(len(KINDS))
NONE = -1


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a client does. `topic` is empty for join, move and leave; `site` only join and move have."""

    time_s: float
    kind: Kind
    client: str
    topic: str
    site: str
    x: float
    y: float
    size: int

    def payload(self) -> dict[str, Any]:
        """The object a client publishes: who and where, filled up to about `size` bytes."""
        content: dict[str, Any] = {"client": self.client, "time_s": round(self.time_s, 3)}
        if not math.isnan(self.x):
            content |= {"x": round(self.x, 6), "y": round(self.y, 6)}
        room = self.size - len(str(content)) - len(', "fill": ""')
        return content | {"fill": "." * room} if room > 0 else content


@dataclass(frozen=True)
class Predicted:
    """What a schedule must cause when nothing is lost and nothing is doubled, per topic."""

    topics: tuple[str, ...]
    published: Ints
    delivered: Ints


@dataclass(frozen=True)
class Schedule:
    """Events in order of time. Clients, topics and sites are positions in the tuples of their names."""

    clients: tuple[str, ...]
    topics: tuple[str, ...]
    sites: tuple[str, ...]
    time_s: Floats
    kind: NDArray[np.int8]
    client: NDArray[np.int32]
    topic: NDArray[np.int32]
    site: NDArray[np.int32]
    x: NDArray[np.float32]
    y: NDArray[np.float32]
    size: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.time_s)

    def __iter__(self) -> Iterator[Event]:
        columns = (self.time_s, self.kind, self.client, self.topic, self.site, self.x, self.y, self.size)
        # In blocks: plain Python numbers are cheap to handle, millions of them at once are not.
        for start in range(0, len(self), 65_536):
            block = (c[start : start + 65_536].tolist() for c in columns)
            for time_s, kind, client, topic, site, x, y, size in zip(*block, strict=True):
                topic_name = "" if topic == NONE else self.topics[topic]
                site_name = "" if site == NONE else self.sites[site]
                yield Event(time_s, KINDS[kind], self.clients[client], topic_name, site_name, x, y, size)

    def count(self, kind: int) -> int:
        """How many events of one kind there are."""
        return int(np.count_nonzero(self.kind == kind))

    def until(self, time_s: float) -> Schedule:
        """The events before a time."""
        end = int(np.searchsorted(self.time_s, time_s))
        columns = ("time_s", "kind", "client", "topic", "site", "x", "y", "size")
        return replace(self, **{name: getattr(self, name)[:end] for name in columns})

    def fan_out(self) -> tuple[Ints, Ints]:
        """Rows of the publications, and how many subscribers each has at its moment.

        A client that subscribes to the topic it publishes to is one of them: it gets its own message.
        """
        step = np.zeros(len(self), dtype=np.int64)
        step[self.kind == SUBSCRIBE] = 1
        step[self.kind == UNSUBSCRIBE] = -1
        by_topic = np.argsort(self.topic, kind="stable")
        running = np.cumsum(step[by_topic])
        # Steps of a topic add up from its own first row, not from that of the topics before it.
        starts = np.searchsorted(self.topic[by_topic], np.arange(len(self.topics)))
        before = np.concatenate(([0], running))[starts]
        publications = np.flatnonzero(self.kind[by_topic] == PUBLISH)
        rows = by_topic[publications]
        subscribers = running[publications] - before[self.topic[rows]]
        in_order = np.argsort(rows)
        return rows[in_order], subscribers[in_order]

    def predicted(self) -> Predicted:
        """Publications and deliveries per topic."""
        rows, subscribers = self.fan_out()
        topic, count = self.topic[rows], len(self.topics)
        published = np.bincount(topic, minlength=count)
        delivered = np.bincount(topic, weights=subscribers, minlength=count).astype(np.int64)
        return Predicted(self.topics, published, delivered)


@dataclass
class ScheduleBuilder:
    """Collects blocks of events in any order; `build` sorts them by time, then by kind."""

    clients: Sequence[str]
    topics: Sequence[str]
    sites: Sequence[str]
    _blocks: list[tuple[NDArray[Any], ...]] = field(default_factory=list)

    def add(
        self,
        kind: int,
        time_s: ArrayLike,
        client: ArrayLike,
        topic: ArrayLike = NONE,
        site: ArrayLike = NONE,
        x: ArrayLike = np.nan,
        y: ArrayLike = np.nan,
        size: ArrayLike = 0,
    ) -> None:
        """Add one event per element; single values apply to all of them."""
        self._blocks.append(
            tuple(
                np.asarray(column, dtype=kind_of)
                for column, kind_of in zip(
                    np.broadcast_arrays(*map(np.atleast_1d, (time_s, kind, client, topic, site, x, y, size))),
                    (np.float64, np.int8, np.int32, np.int32, np.int32, np.float32, np.float32, np.int32),
                    strict=True,
                )
            )
        )

    def build(self) -> Schedule:
        """The schedule."""
        columns = [np.concatenate(parts) for parts in zip(*self._blocks, strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        names = (tuple(self.clients), tuple(self.topics), tuple(self.sites))
        return Schedule(*names, *(column[order] for column in columns))


def ticks(rng: np.random.Generator, actors: int, period_s: float, start_s: float, end_s: float) -> tuple[Floats, Ints]:
    """Times and actors when each acts once per period, each with a phase of its own."""
    phase = rng.uniform(0, period_s, actors)
    rounds = np.arange(start_s, end_s, period_s)
    times = (rounds[:, None] + phase[None, :]).ravel()
    who = np.tile(np.arange(actors), len(rounds))
    inside = times < end_s
    return times[inside], who[inside]
