"""A limit on the time of the Spark jobs of one evaluation."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TimeLimit"]

_numbers = itertools.count()


class TimeLimit:
    """Use as a context manager: jobs started by this thread are cancelled when it has taken too long."""

    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self._context, self._tag = spark.sparkContext, f"nearcast-limit-{next(_numbers)}"
        self._timer = threading.Timer(seconds, self._cancel)
        self._timer.daemon = True
        self.seconds, self.exceeded = seconds, False

    def __enter__(self) -> TimeLimit:
        self._context.addJobTag(self._tag)
        self._timer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._timer.cancel()
        self._context.removeJobTag(self._tag)

    def _cancel(self) -> None:
        self.exceeded = True
        self._context.cancelJobsWithTag(self._tag)
