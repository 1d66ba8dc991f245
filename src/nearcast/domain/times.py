"""Times as users write them: ISO 8601, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from nearcast.errors import InputError

__all__ = ["parse_time", "span_seconds", "time_of"]

_SPAN = re.compile(r"([0-9]{1,10})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = 36_500 * 86_400  # a longer one would leave the years that a date can have


def parse_time(name: str, text: str) -> datetime | None:
    """The time that an option gives; nothing for an empty text."""
    if not text:
        return None
    when = time_of(text)
    if when is None:
        allowed = "a time such as 2026-05-01T12:00, a span such as 15m (36500d at most)"
        raise InputError(f"--{name} is {text!r}; allowed: {allowed}")
    return when


def time_of(text: str) -> datetime | None:
    """A time, in this machine's zone if it names none, or a span before now; nothing for any other text."""
    if (seconds := span_seconds(text)) is not None:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def span_seconds(text: str) -> int | None:
    """A span such as 90s, 15m, 2h or 3d in seconds, 36500d at most; nothing for any other text."""
    span = _SPAN.fullmatch(text)
    seconds = int(span[1]) * _SECONDS[span[2]] if span else None
    return seconds if seconds is not None and seconds <= _LONGEST else None
