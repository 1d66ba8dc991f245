"""Errors in the query of a channel, with their place in its text: as sqlglot noted it, or as Spark says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.cluster.channels.query_tree import parse_query
from nearcast.cluster.spark_errors import error_line
from nearcast.errors import InputError

if TYPE_CHECKING:
    from nearcast.domain.channel import ChannelSpec

__all__ = ["QueryError", "check_syntax", "line_and_column", "located", "spark_refusal"]


class QueryError(InputError):
    """A query that cannot be that of a channel. offset: of the error in the text, if known."""

    def __init__(self, channel: ChannelSpec, reason: str, offset: int | None = None) -> None:
        self.offset = offset
        if offset is None:
            super().__init__(f"channel {channel.name}: {reason}")
            return
        text = channel.query.strip()
        line, column = line_and_column(text, offset)
        shown = (text.splitlines() or [""])[line - 1]
        super().__init__(
            f"channel {channel.name}: line {line}, column {column}: {reason}\n  {shown}\n  {' ' * (column - 1)}^"
        )


def line_and_column(text: str, offset: int) -> tuple[int, int]:
    """Where an offset is in a text, counted from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


@contextmanager
def located(channel: ChannelSpec) -> Iterator[None]:
    """Raise what is wrong with a channel's query as a QueryError that shows the place."""
    try:
        yield
    except PolicyError as error:
        raise QueryError(channel, str(error), error.offset) from None


def check_syntax(channel: ChannelSpec) -> None:
    """QueryError for what cannot be parsed or is not allowed: at once, before Spark is started to judge the rest."""
    with located(channel):
        parse_query(channel.query)


def spark_refusal(text: str, error: Any) -> PolicyError:
    """What Spark says of a query, and where."""
    message = re.sub(r"; line \d+ pos \d+\s*;?$", "", error_line(error)).rstrip(";. ")
    offset = _place(str(error), error)
    return PolicyError(message, offset=None if offset is None else min(max(offset, 0), max(len(text) - 1, 0)))


def _place(text: str, error: Any) -> int | None:
    """The offset of Spark's error: from its context, else from `line x pos y` in its text."""
    try:
        for context in error.getQueryContext():
            if context.contextType().name == "SQL":
                return int(context.startIndex())
    except Exception:  # the contexts of some errors cannot be read; the text has the place, too
        pass
    sql = re.search(r"\(line (\d+), pos (\d+)\)|line (\d+),? pos (\d+)", text)
    if sql is None:
        return None
    line, column = (int(sql[1]), int(sql[2])) if sql[1] else (int(sql[3]), int(sql[4]))
    body = text.partition("== SQL ==\n")[2]
    if body:
        lines = [piece for piece in body.splitlines() if not re.fullmatch(r"-*\^+", piece)]
        return sum(len(piece) + 1 for piece in lines[: line - 1]) + column
    return column if line == 1 else None
