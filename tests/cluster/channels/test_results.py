"""Results on disk: recovered after a crash, merged, and deleted by day."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.cluster.conftest import Store

from nearcast.cluster.channels.results import ResultLog, group_results
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
from nearcast.nats import subjects
from nearcast.nats.streams import StreamBounds

DAY = 86_400_000_000


class EmptyStore:
    """A connection to a store whose streams are empty."""

    def bounds(self, stream: str, prefix: str) -> StreamBounds:
        return StreamBounds(1, 0)


def test_results_are_found_by_their_number_and_deleted_by_day(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    log = ResultLog(warehouse, cast("Any", EmptyStore()), "dataset-x-1", "$JS.API")
    rows = pa.table(
        {"channel": ["c", "c"], "key": ["k", "k"], "row": ['{"id":1}', '{"id":2}'], "position": pa.nulls(2, pa.int32())}
    )
    for number in range(1, 101):
        log.store(number, group_results(rows, number, (number - 1) // 50 * DAY), {"position": number})
    assert log.stored(101) is None
    found = log.stored(60)
    assert found is not None
    assert found.recovered
    assert found.metadata == {"positions": {"c": 0}, "position": 60}
    assert found.table["payload"].to_pylist() == ['{"channel":"c","key":"k","execution":60,"rows":[{"id":1},{"id":2}]}']
    log.tidy("1970-01-02")
    left = warehouse.files(log.folder)
    assert {span.folder.rpartition("/")[2] for span in left} == {"day=1970-01-02"}
    assert len(left) == 2, "those before the newest are one file"
    assert sum(warehouse.read(span).num_rows for span in left) == 50
    assert log.stored(100) is not None, "the newest may have to be published again"


def test_results_that_a_store_drops_are_published_again_and_no_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = "c_dropped"
    stream = subjects.channel_stream(channel)
    store.make_stream(stream, subjects.channel_results(channel, "*"))
    connection = BlockingConnection([store.url])
    log = ResultLog(Warehouse(str(tmp_path)), connection, "dataset-y-1", "$JS.API")

    def publish_results(number: int) -> int:
        rows = pa.table(
            {
                "channel": [channel] * 20,
                "key": [f"k{n}" for n in range(20)],
                "row": ["{}"] * 20,
                "position": pa.nulls(20, pa.int32()),
            }
        )
        return log.publish(log.store(number, group_results(rows, number, number)))

    def kept() -> list[str]:
        last = connection.bounds(stream, "$JS.API").last
        entries = connection.call(connection.reader("$JS.API").read_range(stream, ">", 1, last + 1))
        return [entry.id.decode() for entry in entries]

    assert publish_results(1) == 20
    assert len(kept()) == 20
    # Another publisher's message lies between: nothing is missing, so nothing is published again.
    store.put(subjects.channel_results(channel, "other"), [b"{}"])
    sent: list[str] = []
    publish = connection.publish
    monkeypatch.setattr(
        connection, "publish", lambda messages: sent.extend(m[1] for m in messages) or publish(messages)
    )
    publish_results(2)
    assert sent == []
    assert len(kept()) == 41
    # The store drops every third message but the last: those are published again.
    in_order = connection.publish_in_order
    monkeypatch.setattr(
        connection, "publish_in_order", lambda m: in_order([x for n, x in enumerate(m) if n % 3 or n == 19])
    )
    publish_results(3)
    assert len(sent) == 7
    assert sorted(kept()[41:]) == sorted(f"{channel}:k{n}:3:3" for n in range(20))
    # After a crash, from the stored results: all are published already.
    recovered = log.stored(3)
    assert recovered is not None
    assert log.publish(recovered) == 0
