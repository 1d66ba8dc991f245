"""`nearcast topic add` refuses what no topic can have, before it asks a coordinator. No server runs."""

from __future__ import annotations

import pytest

from nearcast import InputError
from nearcast.cli.topic import add


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"quorum": -1}, "quorum is -1; allowed: 0 or more"),
        ({"bound_ms": -5.0}, "bound_ms is -5.0; allowed: above 0"),
        ({"bound_ms": float("nan")}, "bound_ms is nan; allowed: above 0"),
    ],
)
def test_a_number_that_no_topic_can_have_is_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        add("gps", url="nats://127.0.0.1:1", **options)  # type: ignore[arg-type]
    assert str(caught.value) == complaint
