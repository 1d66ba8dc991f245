"""The data cluster as the demo shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nearcast.lab.channel_demo import run_channel_demo
from nearcast.site.ports import free_ports

pytestmark = pytest.mark.xdist_group("spark")


async def test_every_subscriber_of_the_demo_is_told_once(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[float] = []
    result = await run_channel_demo(tmp_path, free_ports(20), 100, 2.0, 3, seen.append, spark)
    assert result.reports > 10
    assert result.distinct < result.subscribers == 100, "equal subscriptions share a row"
    assert result.received == result.expected > 0
    assert result.duplicated == 0
    assert len(result.latencies_ms) == result.expected
    assert seen == sorted(seen)
