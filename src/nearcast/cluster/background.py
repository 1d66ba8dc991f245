"""A data cluster inside another asynchronous program: the demo, a benchmark, a test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from nearcast.cluster.engine import Engine
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from nearcast.domain.deployment import Deployment

__all__ = ["running_engine"]


@contextlib.asynccontextmanager
async def running_engine(spark: SparkSession, deployment: Deployment) -> AsyncIterator[Engine]:
    """The data cluster in a thread of its own, stopped at the end."""
    if deployment.cluster is None:
        raise InputError("the deployment has no [cluster]")
    engine = await asyncio.to_thread(Engine, spark, deployment.cluster, deployment)
    stop = threading.Event()

    def work() -> None:
        with engine:
            engine.run(stop)

    thread = threading.Thread(target=work, name="data cluster")
    thread.start()
    try:
        yield engine
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)
