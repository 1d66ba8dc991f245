"""Who published what, who received it when: what was late, lost or repeated.

A delivery is one publication at one of its subscribers. Only publications of the measured time count. What a
subscriber that comes or goes does not receive within `GUARD` of it is not lost: interest has not spread everywhere yet,
or messages may be on their way.
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
    """Deliveries in order of publication, one element each; lost ones have an infinite latency.

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

    # One number per publication, and one per publication and client: arrays of numbers are quick to compare.
    most = max(published[:, 1].max(initial=0), received[:, 2].max(initial=0)) + 1
    clients = len(scenario.participants)
    name = published[:, 0] * most + published[:, 1]
    wanted = [np.zeros(0, dtype=np.int64)]
    for client, of_topic, since, until in (row for result in results for row in result.subscribed):
        begin, end = since / 1e6 - start + GUARD, until / 1e6 - start - GUARD
        wanted.append(name[(topic == topics[of_topic]) & (at >= begin) & (at < end)] * clients + client)

    received = received[np.argsort(received[:, 3], kind="stable")]
    receipt = (received[:, 1] * most + received[:, 2]) * clients + received[:, 0]
    receipt, received = receipt[judged := np.isin(receipt // clients, name)], received[judged]
    arrived, first = np.unique(receipt, return_index=True)
    delivery = np.union1d(arrived, np.concatenate(wanted))
    by_name = np.argsort(name)
    row = by_name[np.searchsorted(name, delivery // clients, sorter=by_name)]
    latency = np.full(len(delivery), np.inf)
    known = np.isin(delivery, arrived)  # both ascend
    latency[known] = (received[first, 3] - published[row[known], 3]) / 1e3
    order = np.lexsort((delivery % clients, row))
    row, delivery, latency = row[order], delivery[order], latency[order]
    subscriber = delivery % clients
    return DeliveryLedger(
        topic[row], published[row, 0], subscriber, at[row], latency,
        len(receipt) - len(arrived), sum(len(result.failed) for result in results),
        float(np.percentile(published[:, 3] - published[:, 2], 99)) / 1e3 if len(published) else 0.0,
    )  # fmt: skip


def _rows(rows: list[tuple[int, ...]], columns: int) -> NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(-1, columns)
