"""Whether the query of a channel is SQL and allowed: what sqlglot says at once, before Spark is started to judge it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot.errors import ParseError, SqlglotError

from nearcast.cluster.channels.query_errors import QueryError, node_offset
from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.cluster.channels.query_tree import parse_query

if TYPE_CHECKING:
    from nearcast.domain.channel import ChannelSpec

__all__ = ["check_syntax"]


def check_syntax(channel: ChannelSpec) -> None:
    """QueryError for what cannot be parsed or is not allowed."""
    text = channel.query.strip().rstrip(";").rstrip()
    try:
        parse_query(text)
    except PolicyError as error:
        raise QueryError(channel.name, text, node_offset(error.node), str(error)) from None
    except SqlglotError as error:
        found = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        reason = found.get("description") or str(error).splitlines()[0]
        raise QueryError(channel.name, text, _offset(text, found), f"the query is not understood: {reason}") from None


def _offset(text: str, found: dict[str, object]) -> int | None:
    """Of the token that sqlglot stumbled over; it notes the line, and the column where that token ends."""
    line, column, token = found.get("line"), found.get("col"), found.get("highlight")
    if not isinstance(line, int) or not isinstance(column, int) or not isinstance(token, str):
        return None
    begun = sum(len(one) for one in text.splitlines(keepends=True)[: line - 1])
    return min(max(begun + column - len(token), 0), max(len(text) - 1, 0))
