"""Errors in the query of a channel, with their place in its text: as sqlglot noted it, or as Spark says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from nearcast.cluster.spark_errors import error_line
from nearcast.errors import InputError

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["QueryError", "node_offset", "raise_located"]


class QueryError(InputError):
    """A query that cannot be that of a channel. offset: of the error in the text, if known."""

    def __init__(self, channel: str, text: str, offset: int | None, reason: str) -> None:
        self.offset = offset
        if offset is None:
            super().__init__(f"channel {channel}: {reason}")
            return
        line = text.count("\n", 0, offset) + 1
        column = offset - (text.rfind("\n", 0, offset) + 1) + 1
        shown = (text.splitlines() or [""])[line - 1]
        super().__init__(
            f"channel {channel}: line {line}, column {column}: {reason}\n  {shown}\n  {' ' * (column - 1)}^"
        )


def node_offset(node: exp.Expr | None) -> int | None:
    """Where a node is in the text, if sqlglot noted it."""
    if node is None:
        return None
    starts = [inner.meta["start"] for inner in node.walk() if "start" in inner.meta]
    return min(starts, default=None)


def raise_located(channel: str, text: str, error: Any) -> NoReturn:
    """Raise what Spark says of a query as a QueryError that shows the place."""
    message = re.sub(r"; line \d+ pos \d+\s*;?$", "", error_line(error)).rstrip(";. ")
    offset = _place(str(error), error)
    if offset is not None:
        offset = min(max(offset, 0), max(len(text) - 1, 0))
    raise QueryError(channel, text, offset, message) from None


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
