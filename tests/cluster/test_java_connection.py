"""Java does not hold back its answers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from nearcast.cluster.java_connection import send_answers_at_once

pytestmark = pytest.mark.xdist_group("spark")


def test_answers_to_a_micro_batch_are_sent_at_once(spark: SparkSession, tmp_path: Path) -> None:
    gateway: Any = spark.sparkContext._gateway
    seen: list[bool] = []
    called = threading.Event()

    def batch(frame: DataFrame, number: int) -> None:
        socket = gateway.java_gateway_server.getCallbackClient().getPerThreadConnection().getSocket()
        before = bool(socket.getTcpNoDelay())
        send_answers_at_once(spark)
        seen.extend((before, bool(socket.getTcpNoDelay())))
        called.set()

    stream = spark.readStream.format("rate").load().writeStream.foreachBatch(batch)
    query = stream.option("checkpointLocation", str(tmp_path)).start()
    try:
        assert called.wait(120)
    finally:
        query.stop()
    assert seen[:2] == [False, True]


def test_a_thread_whose_connection_is_not_known_goes_on(spark: SparkSession) -> None:
    """Py4J forgets the connections of other threads when the first micro-batch starts its callbacks."""
    for _ in range(2):
        send_answers_at_once(spark)
        assert spark.range(3).count() == 3
