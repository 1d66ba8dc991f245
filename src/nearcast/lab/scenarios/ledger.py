"""Who published what, who received it when: what was late, lost or repeated.

A delivery is one publication at one of its subscribers. Only publications of the measured time count, neither those of
the warm-up nor, of a subscriber that comes or goes meanwhile, those within `GUARD` of it: interest has not spread
everywhere yet, or messages may be on their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from nearcast.lab.scenarios.clients import ClientResults
    from nearcast.lab.scenarios.scenario import Scenario

__all__ = ["GUARD", "DeliveryLedger", "read_ledger"]

GUARD = 2.0  # s


@dataclass(frozen=True)
class DeliveryLedger:
    """Expected deliveries in order of publication, one element each; lost ones have an infinite latency.

    topic, publisher, subscriber: numbers, by the scenario's order. published: seconds of the measured time.
    repeated: receipts of a message by a client that had it already. failed: publications refused by the client library.
    lag_ms: how long after its time a publication was made, p99; when it is long, the machine was too busy to measure.
    """

    topic: NDArray[np.int64]
    publisher: NDArray[np.int64]
    subscriber: NDArray[np.int64]
    published: NDArray[np.float64]
    latency_ms: NDArray[np.float64]
    repeated: int
    failed: int
    lag_ms: float

    def __len__(self) -> int:
        return len(self.published)

    @property
    def lost(self) -> int:
        """Deliveries that never happened."""
        return int(np.isinf(self.latency_ms).sum())

    def late(self, bound_ms: float) -> NDArray[np.bool_]:
        """Which deliveries took longer than the bound. Lost ones did."""
        late: NDArray[np.bool_] = self.latency_ms > bound_ms
        return late


def read_ledger(scenario: Scenario, start: float, results: Sequence[ClientResults]) -> DeliveryLedger:
    """The ledger of a run whose measured time began at a Unix time."""
    published = _rows([row for result in results for row in result.published], 4)
    received = _rows([row for result in results for row in result.received], 4)
    topics = {topic: n for n, topic in enumerate(scenario.topics)}
    topic_of = np.array([topics[participant.topic] for participant in scenario.participants])

    at = published[:, 3] / 1e6 - start
    published, at = published[order := np.argsort(at, kind="stable")], at[order]
    inside = (at >= 0.0) & (at < scenario.seconds)
    published, at = published[inside], at[inside]
    topic = topic_of[published[:, 0]]

    # One number per publication, and one per publication and subscriber: arrays of numbers are quick to compare.
    most = max(published[:, 1].max(initial=0), received[:, 2].max(initial=0)) + 1
    name = published[:, 0] * most + published[:, 1]
    clients = len(scenario.participants)
    expected = []
    for client, of_topic, since, until in (row for result in results for row in result.subscribed):
        begin, end = since / 1e6 - start + GUARD, until / 1e6 - start - GUARD
        rows = np.flatnonzero((topic == topics[of_topic]) & (at >= begin) & (at < end))
        expected.append(np.stack([rows, np.full(len(rows), client)]))
    rows, subscriber = np.concatenate(expected, axis=1) if expected else np.zeros((2, 0), dtype=np.int64)
    rows, subscriber = rows[order := np.lexsort((subscriber, rows))], subscriber[order]

    received = received[np.argsort(received[:, 3], kind="stable")]
    receipt = (received[:, 1] * most + received[:, 2]) * clients + received[:, 0]
    first, index, count = np.unique(receipt, return_index=True, return_counts=True)
    judged = np.isin(first // clients, name)
    delivery = name[rows] * clients + subscriber
    where = np.searchsorted(first, delivery)
    found = np.zeros(len(delivery), dtype=bool)
    within = where < len(first)
    found[within] = first[where[within]] == delivery[within]
    latency = np.full(len(delivery), np.inf)
    took = received[index[where[found]], 3] - published[rows[found], 3]
    latency[found] = took / 1e3
    return DeliveryLedger(
        topic[rows], published[rows, 0], subscriber, at[rows], latency,
        int((count[judged] - 1).sum()), sum(len(result.failed) for result in results),
        float(np.percentile(published[:, 3] - published[:, 2], 99)) / 1e3 if len(published) else 0.0,
    )  # fmt: skip


def _rows(rows: list[tuple[int, ...]], columns: int) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
