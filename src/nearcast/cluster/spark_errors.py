"""Spark's errors in one line."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["error_line", "failure_reason"]


def error_line(error: Exception) -> str:
    """The first line of a Spark error, without its error class and state."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return re.sub(r"^\[[A-Z_.0-9]+\]\s*|\s*SQLSTATE: \w+", "", line).strip()


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
