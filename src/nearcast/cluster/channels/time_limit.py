"""A limit on the time of the Spark jobs of one evaluation."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TimeLimit", "TimeLimitError"]

_AGAIN_SECONDS = 0.5
_numbers = itertools.count()


class TimeLimitError(Exception):
    """Work took too long, and its jobs were cancelled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"it took longer than {seconds:g} s")


class TimeLimit:
    """Use as a context manager: jobs started by this thread are cancelled when it has taken too long, and what they
    raise becomes a TimeLimitError."""

    def __init__(self, spark: SparkSession, seconds: float) -> None:
        self._context, self._tag = spark.sparkContext, f"nearcast-limit-{next(_numbers)}"
        self._seconds, self._exceeded, self._ended = seconds, False, threading.Event()

    def __enter__(self) -> None:
        self._context.addJobTag(self._tag)
        threading.Thread(target=self._watch, name="time limit", daemon=True).start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._context.removeJobTag(self._tag)
        if self._exceeded and isinstance(error, Exception):
            raise TimeLimitError(self._seconds) from error

    def _watch(self) -> None:
        """Cancel jobs again and again: one may begin late, when Spark has planned for so long."""
        self._exceeded = not self._ended.wait(self._seconds)
        while self._exceeded and not self._ended.is_set():
            self._context.cancelJobsWithTag(self._tag)
            self._ended.wait(_AGAIN_SECONDS)
