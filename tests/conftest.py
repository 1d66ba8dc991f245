"""Settings shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Shared machines are slow at times: no deadline per example, and the same examples on every run.
settings.register_profile(
    "nearcast",
    deadline=None,
    max_examples=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("nearcast")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark per test process, started by the first test that needs it."""
    from nearcast.cluster.spark_session import spark_session

    session = spark_session("tests", "local[2]")
    yield session
    session.stop()
