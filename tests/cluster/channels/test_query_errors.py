"""A query that is no SQL, or not allowed, is refused at its place without Spark."""

from __future__ import annotations

import pytest

from nearcast.cluster.channels.query_errors import QueryError, check_syntax
from nearcast.domain.channel import ChannelSpec

GOOD = "SELECT r.id FROM reports r WHERE r.kind = :kind;"


def test_a_query_that_can_be_one_passes() -> None:
    check_syntax(ChannelSpec("alerts", GOOD))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id FORM reports r", "line 1, column 16: the query is not understood"),
        ("SELECT id FROM reports r\nWHERE (r.kind = 1 ORDER BY id", "line 2, column 19: the query is not understood"),
        ("SELECT 'a FROM reports", "channel alerts: the query is not understood"),
        ("DELETE FROM reports", "one SELECT is needed"),
        ("SELECT 1; SELECT 2", "one SELECT is needed"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "channel alerts: "),
    ],
)
def test_what_is_wrong_is_told_at_its_place(query: str, said: str) -> None:
    with pytest.raises(QueryError) as refused:
        check_syntax(ChannelSpec("alerts", query))
    assert said in str(refused.value)
