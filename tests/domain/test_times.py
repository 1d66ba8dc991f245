"""Times and spans as users type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from nearcast.domain.times import parse_time, span_seconds
from nearcast.errors import InputError


def test_a_span_is_so_long_ago() -> None:
    assert [span_seconds(text) for text in ("90s", "15m", "2h", "3d")] == [90, 900, 7200, 259_200]
    since = parse_time("since", "36500d")
    assert since is not None
    assert abs(since + timedelta(days=36_500) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "text", ["36501d", "99999999999d", "9" * 5000 + "s"], ids=["a day", "an int of C", "an int of Python"]
)
def test_a_span_of_more_than_a_century_is_refused(text: str) -> None:
    """They ended in an OverflowError or a ValueError of Python's."""
    with pytest.raises(InputError, match=r"^--since is .*; allowed: .*\(36500d at most\)$"):
        parse_time("since", text)
