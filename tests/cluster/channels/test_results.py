"""Results on disk: recovered after a crash, merged, and deleted by day."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.cluster.conftest import Store

from nearcast.cluster.channels import results
from nearcast.cluster.channels.channel_shape import MATCHES
from nearcast.cluster.channels.result_tasks import publish_by_tasks
from nearcast.cluster.channels.results import ResultLog, group_results, messages_by_channel
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.blocking_connection import BlockingConnection
from nearcast.nats import subjects
from nearcast.nats.streams import StreamBounds

pytestmark = pytest.mark.xdist_group("spark")
DAY = 86_400_000_000


class EmptyStore:
    """A connection to a store whose streams are empty."""

    def bounds(self, stream: str, prefix: str) -> StreamBounds:
        return StreamBounds(1, 0)


def test_the_rows_of_a_subscription_are_one_result_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    keys = [(rng.choice("ab"), f"k{rng.randrange(9)}") for _ in range(300)]
    rows = [{"channel": c, "key": k, "row": f'{{"n":{n}}}', "position": None} for n, (c, k) in enumerate(keys)]
    table = pa.concat_tables([pa.Table.from_pylist(some, MATCHES) for some in (rows[:70], rows[70:71], rows[71:])])

    def grouped() -> dict[tuple[str, str], list[tuple[int, list[int]]]]:
        found: dict[tuple[str, str], list[tuple[int, list[int]]]] = {}
        for row in group_results(table, 7, 5).to_pylist():
            payload = json.loads(row["payload"])
            assert (payload["channel"], payload["key"], payload["execution"]) == (row["channel"], row["key"], 7)
            assert (row["execution"], row["at"]) == (7, datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC))
            numbers = [one["n"] for one in payload["rows"]]
            found.setdefault((row["channel"], row["key"]), []).append((row["part"], numbers))
        return found

    expected = {key: [n for n, other in enumerate(keys) if other == key] for key in keys}
    assert grouped() == {key: [(0, numbers)] for key, numbers in expected.items()}
    monkeypatch.setattr(results, "_LARGEST", 60)
    in_parts = grouped()
    assert {key: [n for _, some in parts for n in some] for key, parts in in_parts.items()} == expected
    assert all([part for part, _ in parts] == list(range(len(parts))) for parts in in_parts.values())
    assert max(map(len, in_parts.values())) > 1
    # Where the query orders its rows, their positions count.
    table = table.set_column(3, "position", pa.array(range(300, 0, -1), pa.int32()))
    monkeypatch.undo()
    assert grouped() == {key: [(0, numbers[::-1])] for key, numbers in expected.items()}
    assert group_results(MATCHES.empty_table(), 7, 5).num_rows == 0


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
        connection, "publish", lambda messages, *_: sent.extend(m[1] for m in messages) or publish(messages)
    )
    publish_results(2)
    assert sent == []
    assert len(kept()) == 41
    # The store drops every third message but the last: those are published again.
    in_order = connection.publish_in_order
    monkeypatch.setattr(
        connection, "publish_in_order", lambda m, *_: in_order([x for n, x in enumerate(m) if n % 3 or n == 19])
    )
    publish_results(3)
    assert len(sent) == 7
    assert sorted(kept()[41:]) == sorted(f"{channel}:k{n}:3:3" for n in range(20))
    # After a crash, from the stored results: all are published already.
    recovered = log.stored(3)
    assert recovered is not None
    assert log.publish(recovered) == 0


def test_executors_publish_very_many_results(
    spark: SparkSession, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("c_tasks", "c_tasks_too")
    for name in names:
        store.make_stream(subjects.channel_stream(name), subjects.channel_results(name, "*"))
    connection = BlockingConnection([store.url])
    log = ResultLog(Warehouse(str(tmp_path)), connection, "dataset-z-1", "$JS.API")
    tasks = partial(publish_by_tasks, spark, str(tmp_path), (store.url,))
    monkeypatch.setattr(results, "_BY_TASKS", 50)
    monkeypatch.setattr(results, "_LARGEST", 30)  # some results have parts
    rows = [{"channel": names[n % 2], "key": f"k{n % 60}", "row": f'{{"n":{n}}}'} for n in range(300)]
    table = group_results(pa.Table.from_pylist(rows, MATCHES), 4, 4)
    assert 50 < table.num_rows < 300

    def kept() -> list[str]:
        found = []
        for name in names:
            stream = subjects.channel_stream(name)
            last = connection.bounds(stream, "$JS.API").last
            entries = connection.call(connection.reader("$JS.API").read_range(stream, ">", 1, last + 1))
            found += [entry.id.decode() for entry in entries]
        return found

    def drop_some(path: str, stored: pa.Table) -> None:
        """As a store that cannot keep up."""
        for messages in messages_by_channel(stored).values():
            connection.publish([message for n, message in enumerate(messages) if n % 5])

    expected = Counter(message[1] for messages in messages_by_channel(table).values() for message in messages)
    assert log.publish(log.store(4, table), tasks) == table.num_rows
    assert Counter(kept()) == expected
    again = group_results(pa.Table.from_pylist(rows, MATCHES), 5, 5)
    assert log.publish(log.store(5, again), drop_some) == again.num_rows
    assert len(kept()) == len(set(kept())) == 2 * table.num_rows
    recovered = log.stored(5)
    assert recovered is not None
    assert log.publish(recovered, tasks) == 0, "who was interrupted publishes what is missing, by itself"
