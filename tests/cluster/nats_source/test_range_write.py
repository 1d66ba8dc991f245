"""Both lanes give the same table: the driver's for short batches, the executors' for long ones."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession
from tests.cluster.conftest import Store

from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.nats_source.driver_read import DriverReader
from nearcast.cluster.nats_source.range_write import write_ranges
from nearcast.domain.dataset import DatasetSpec

pytestmark = pytest.mark.xdist_group("spark")
MOMENTS = ("2020-11-15T20:00:00Z", "2020-11-14T01:00:00Z", "2099-01-01T00:00:00Z")


def record(n: int) -> bytes:
    if n % 100 == 50:
        return b"not json"
    return json.dumps({"user": f"u{n % 700}", "n": n, "at": MOMENTS[n % 3]}).encode()


def content(folder: Path) -> dict[str, Any]:
    data = pl.read_delta(str(folder / "data")).sort("_sequence")
    refused = pl.read_delta(str(folder / "quarantine")).sort("sequence")
    return {"data": data.select(sorted(data.columns)).rows(), "refused": refused.select("sequence", "reason").rows()}


def test_executors_write_the_table_that_the_driver_would_write(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    stream = f"s{uuid.uuid4().hex[:8]}"
    store.make_stream(stream, f"{stream}.>")
    store.put(f"{stream}.a", [record(n) for n in range(9000)], prefix=stream)
    spec = DatasetSpec(
        "places", "user STRING, n INT, at TIMESTAMP", "fed.places", "user", "at", late_after=60.0, future_limit=1e6
    )
    options = {"servers": store.url, "stream": stream, "valueSchema": spec.schema, "partitions": "2"}
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text(f'v1\n{{}}\n{{"{stream}": 9000}}')
    reader = DriverReader(options, str(checkpoint))
    states = []
    for lane in ("short", "long"):
        table = StreamTable(spark, spec, Warehouse(str(tmp_path / lane)), term=1)
        if lane == "short":
            rows = reader.read_range(1, 9000)
            assert rows is not None
            batch = table.validate(rows)
            arrived_us = batch.arrived_us
            table.keep(batch)
        else:
            found = reader.long_batch(0, 0)
            assert found is not None
            parts, last = found
            assert (len(parts), last) == (2, 9000)
            written = write_ranges(spark, table, reader.ranges, parts, last)
            assert (written.rows, written.refused_rows) == (5940, 3060)
            files = table.written(written)
            assert spark.read.parquet(*files.uris).count() == files.num_rows == 5940
            assert written.arrived_us == arrived_us > 0, "ids of results are the same on both lanes"
            table.keep(written)
        table.close()
        assert (table.position, table.notified) == (9000, 9000)
        states.append((content(tmp_path / lane / "datasets/places"), table.watermarks))
        keyed = {row.user: row.n for row in table.frame().collect()}
        latest = {f"u{n % 700}": n for n in range(0, 9000, 3) if n % 100 != 50}
        assert keyed == latest
    assert states[0] == states[1]
    assert reader.long_batch(0, 8000) is None, "what is left is a short batch"
