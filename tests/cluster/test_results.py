"""Results on disk: found again after a crash, merged, and forgotten by day."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from tests.cluster.conftest import Store

from nearcast.cluster.fetch import Link, StreamState
from nearcast.cluster.results import ResultLog, gather
from nearcast.cluster.warehouse import Warehouse
from nearcast.nats import subjects

DAY = 86_400_000_000


class Stream:
    """A link to a store with one stream that nothing is published to."""

    def state(self, stream: str, prefix: str) -> StreamState:
        return StreamState(1, 0)


def test_results_are_found_by_their_number_and_forgotten_by_day(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    log = ResultLog(warehouse, cast("Any", Stream()), "dataset-x-1", "$JS.API")
    rows = pa.table({"channel": ["c", "c"], "key": ["k", "k"], "row": ['{"id":1}', '{"id":2}']})
    for number in range(1, 101):
        log.write(number, gather(rows, number, (number - 1) // 50 * DAY), {"position": number})
    assert log.written(101) is None
    found = log.written(60)
    assert found is not None
    assert found.again
    assert found.about == {"positions": {"c": 0}, "position": 60}
    assert found.table["payload"].to_pylist() == ['{"channel":"c","key":"k","execution":60,"rows":[{"id":1},{"id":2}]}']
    log.tidy("1970-01-02")
    left = warehouse.files(log.folder)
    assert {span.folder.rpartition("/")[2] for span in left} == {"day=1970-01-02"}
    assert len(left) == 2, "those before the newest are one file"
    assert sum(warehouse.read(span).num_rows for span in left) == 50
    assert log.written(100) is not None, "the newest may have to be published again"


def test_results_that_a_store_drops_are_published_again_and_no_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = "c_dropped"
    stream = subjects.channel_stream(channel)
    store.make_stream(stream, subjects.channel_results(channel, "*"))
    link = Link([store.url])
    log = ResultLog(Warehouse(str(tmp_path)), link, "dataset-y-1", "$JS.API")

    def told(number: int) -> int:
        rows = pa.table({"channel": [channel] * 20, "key": [f"k{n}" for n in range(20)], "row": ["{}"] * 20})
        return log.publish(log.write(number, gather(rows, number, number)))

    def kept() -> list[str]:
        last = link.state(stream, "$JS.API").last
        headers = link.fetch(stream, "$JS.API", 1, last).headers if last else []
        return [block.split(b"Nats-Msg-Id: ")[1].split(b"\r\n")[0].decode() for block in headers]

    assert told(1) == 20
    assert len(kept()) == 20
    # Somebody else's message lies between: nothing is missing, so nothing is sent again.
    store.put(subjects.channel_results(channel, "other"), [b"{}"])
    sent: list[str] = []
    publish = link.publish
    monkeypatch.setattr(link, "publish", lambda messages: sent.extend(m[1] for m in messages) or publish(messages))
    told(2)
    assert sent == []
    assert len(kept()) == 41
    # The store drops every third message but the last: those are sent again.
    in_order = link.publish_in_order
    monkeypatch.setattr(link, "publish_in_order", lambda m: in_order([x for n, x in enumerate(m) if n % 3 or n == 19]))
    told(3)
    assert len(sent) == 7
    assert sorted(kept()[41:]) == sorted(f"{channel}:k{n}:3:3" for n in range(20))
    # After a crash, from what was written down: all are there.
    again = log.written(3)
    assert again is not None
    assert log.publish(again) == 0
