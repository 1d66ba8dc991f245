"""Spark's errors in one line."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["error_line", "failure_reason", "is_interruption"]


def error_line(error: Exception) -> str:
    """The first line of a Spark error, without its error class and state, and without hints at Spark's settings."""
    text = str(error)
    if type(error).__name__ == "Py4JJavaError":  # "An error occurred while calling": the cause says more
        cause = error.java_exception  # type: ignore[attr-defined]
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.getMessage() or cause.getClass().getSimpleName())
    line = next(iter(text.strip().splitlines()), type(error).__name__)
    return _without_settings(re.sub(r"^\[[A-Z_.0-9]+\]\s*|\s*SQLSTATE: \w+", "", line).strip())


def _without_settings(line: str) -> str:
    """Who reads it cannot change them. The first sentence, which says what is wrong, stays as it is."""
    first, *others = re.split(r"(?<=\.)\s+", line)
    return " ".join([first, *(text for text in others if not re.search(r"\bspark\.\w+\.\w", text))])


def is_interruption(error: Exception) -> bool:
    """Whether an error says that the work was stopped from outside, not that it failed."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        # Only what Spark says itself: values of users may be part of a message, but not its beginning.
        if str(cause.getClass().getSimpleName()) == "InterruptedException":
            return True
        if re.match(r"\[SPARK_JOB_CANCELLED|Job \d+ cancelled|SparkContext was shut down", str(cause.getMessage())):
            return True
        cause = cause.getCause()
    return False


def failure_reason(error: Any) -> str:
    """Why a streaming query stopped, in one line for a user."""
    text = str(error or "it ended")
    known = re.search(r"(?:StreamError|StorageError|InputError|ConnectionLostError): ([^\n]*)", text)
    if known:
        return known[1]
    if re.search(r"offsets?.*(malformed|corrupt|empty)|Incomplete log file|UnexpectedEnd|JsonParse|log file", text):
        return "its checkpoint is damaged: remove its folder below `checkpoints`; it resumes after its last record"
    if "No space left on device" in text:
        return "the disk is full"
    lines = [line for line in text.splitlines() if line.strip()]
    return error_line(Exception(lines[0])) if lines else text
