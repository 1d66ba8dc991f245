"""Rewrites a channel's query so that one plan answers all its subscriptions.

`:name` becomes a column of the subscription table, and Spark's optimizer turns equalities into hash joins. A value of a
subscription is never part of the text. `distance(a.lat, a.lon, x, y) <= :radius` is rewritten as an equality: the
records of `a` are copied into the grid cells around them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.tokens import (
    Predicate,
    TableRef,
    Token,
    predicates,
    split_arguments,
    tables,
    tokenize,
)

__all__ = ["KEY", "SUBSCRIPTIONS", "RewriteOptions", "parameters_used", "rewrite"]

SUBSCRIPTIONS = "_subscriptions"
KEY = "_subscription"


@dataclass(frozen=True)
class RewriteOptions:
    """How a query is rewritten.

    inline: the subscription table joins the query's own FROM, which gives the cheaper plan; else it joins the query as
    a LATERAL subquery, which works for any query.
    """

    inline: bool = False


def parameters_used(query: str) -> dict[str, int]:
    """The parameters of a query and the offset of the first use of each."""
    found: dict[str, int] = {}
    for token in tokenize(query):
        if token.kind == "parameter":
            found.setdefault(token.text[1:], token.start)
    return found


def rewrite(
    query: str,
    how: RewriteOptions,
    *,
    view_of: Callable[[str], str],
    values: Mapping[str, Collection[float]],
    subscriptions: str = SUBSCRIPTIONS,
) -> str:
    """The query for all subscriptions, with a first column `_subscription`, the key.

    view_of: the view that stands for a dataset. values: the distinct values that subscriptions have for a parameter.
    """
    tokens = tokenize(query)
    edits = _Edits(query)
    named = tables(tokens)
    extra: dict[int, list[str]] = {}  # a table by its start -> the columns it gets

    for n, (predicate, alias, column, wanted) in enumerate(_equalities(tokens, named, values)):
        extra.setdefault(alias.start, []).append(f"explode({column}) AS _e{n}")
        edits.put(predicate.start, predicate.end, wanted.replace("{e}", f"{alias.alias}._e{n}"))
    for table in named:
        # One explode per SELECT is allowed, so they are nested.
        columns = extra.get(table.start, [])
        edits.put(table.start, table.start, "".join(f"(SELECT *, {column} FROM " for column in reversed(columns)))
        if table.name:
            bare = query[table.end :].lstrip()[: len(table.alias)].lower() != table.alias and table.alias == table.name
            edits.put(table.start, table.end, view_of(table.name))
            edits.put(table.end, table.end, ")" * len(columns) + (f" AS {table.alias}" if bare else ""))
        else:
            edits.put(table.end, table.end, ")" * len(columns))
    if how.inline:
        select, origin = _outer_clauses(tokens)
        edits.put(select.end, select.end, f" _p._key AS {KEY},")
        edits.put(origin.end, origin.end, f" {subscriptions} AS _p CROSS JOIN")
    text = edits.text(lambda piece: _bind(piece))
    if how.inline:
        return text
    return f"SELECT _p._key AS {KEY}, _q.* FROM {subscriptions} AS _p JOIN LATERAL ({text}) AS _q"


def _equalities(
    tokens: Sequence[Token],
    named: Sequence[TableRef],
    values: Mapping[str, Collection[float]],
) -> list[tuple[Predicate, TableRef, str, str]]:
    """(predicate, table to copy, array to explode, new predicate) for each predicate that becomes an equality."""
    found: list[tuple[Predicate, TableRef, str, str]] = []
    copied: set[int] = set()
    for predicate in predicates(tokens):
        made = _radius(predicate, named, copied, values)
        if made is not None:
            copied.add(made[0].start)
            found.append((predicate, *made))
    return found


def _radius(
    predicate: Predicate, named: Sequence[TableRef], copied: set[int], values: Mapping[str, Collection[float]]
) -> tuple[TableRef, str, str] | None:
    found = radius_condition(predicate)
    if found is None:
        return None
    arguments, bound, text = found
    levels = bound_levels(bound, values)
    if levels is None:
        return None
    points = (arguments[:2], arguments[2:])
    for here, there in (points, points[::-1]):
        table = _owner(predicate, named, here)
        if table is None or table.start in copied:
            continue
        lat, lon = (_columns_only(part) for part in here)
        other = grid.cell(_text(there[0]), _text(there[1]), *_level(bound))
        return table, grid.cells_around(lat, lon, levels), f"({{e}} = {other} AND {text})"
    return None


def radius_condition(predicate: Predicate) -> tuple[list[tuple[Token, ...]], Token, str] | None:
    """The four coordinates and the bound of `distance(…) <= bound`, either way round."""
    tokens = predicate.tokens
    if tokens[0].word == grid.FUNCTION.upper() and len(tokens) > 3 and tokens[-2].text in ("<", "<="):
        call, bound = tokens[1:-2], tokens[-1]
    elif len(tokens) > 3 and tokens[1].text in (">", ">=") and tokens[2].word == grid.FUNCTION.upper():
        call, bound = tokens[3:], tokens[0]
    else:
        return None
    if bound.kind not in ("parameter", "number") or not call or call[0].text != "(" or call[-1].text != ")":
        return None
    arguments = split_arguments(call)
    if len(arguments) != 4 or not all(arguments):
        return None
    return arguments, bound, _text(tokens)


def bound_levels(bound: Token, values: Mapping[str, Collection[float]]) -> list[int] | None:
    """The grid levels that a bound needs: that of a number, or those of the values in use for a parameter."""
    if bound.kind == "number":
        return [grid.level_of(float(bound.text.rstrip("DdLlFf")))]
    return sorted({grid.level_of(value) for value in values.get(bound.text[1:], ())})


def _level(bound: Token) -> tuple[str, str]:
    """Level and row height as SQL: of a number, or from the columns that the subscription table has for a parameter."""
    if bound.kind == "parameter":
        name = bound.text[1:]
        return f"_p._l_{name}", f"_p._h_{name}"
    level = grid.level_of(float(bound.text.rstrip("DdLlFf")))
    return str(level), f"{grid.height_of(level)!r}D"


def _owner(predicate: Predicate, named: Sequence[TableRef], parts: Sequence[Sequence[Token]]) -> TableRef | None:
    """The table of the block that has all columns of these parts; None if copying it would change a LEFT JOIN."""
    aliases = set()
    for part in parts:
        for n, token in enumerate(part):
            if token.kind == "parameter" or token.text == "(":
                return None
            if token.kind == "name" and n + 1 < len(part) and part[n + 1].text == ".":
                aliases.add(token.text.strip("`").lower())
            elif token.kind == "name" and not (n and part[n - 1].text == "."):
                return None  # a bare column: which table is it of?
    block = predicate.tokens[0].block
    fitting = [table for table in named if table.block == block and {table.alias} == aliases]
    if len(fitting) != 1 or (predicate.outer and fitting[0].alias != predicate.outer):
        return None
    if fitting[0].outer and not predicate.outer:
        return None
    return fitting[0]


def _columns_only(part: Sequence[Token]) -> str:
    """The text without the alias, for use inside that table."""
    kept = []
    n = 0
    while n < len(part):
        if part[n].kind == "name" and n + 1 < len(part) and part[n + 1].text == ".":
            n += 2
            continue
        kept.append(part[n].text)
        n += 1
    return " ".join(kept)


def _outer_clauses(tokens: Sequence[Token]) -> tuple[Token, Token]:
    select = next(token for token in tokens if token.word == "SELECT" and token.depth == 0)
    origin = next(token for token in tokens if token.word == "FROM" and token.depth == 0)
    return select, origin


def _text(tokens: Sequence[Token]) -> str:
    return " ".join(token.text for token in tokens).replace(" . ", ".")


def _bind(text: str) -> str:
    """Every parameter as a column of the subscription table."""
    pieces, last = [], 0
    for token in tokenize(text):
        if token.kind == "parameter":
            pieces += [text[last : token.start], f"_p._p_{token.text[1:]}"]
            last = token.end
    return "".join([*pieces, text[last:]])


class _Edits:
    """Replacements in a text that do not overlap."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._edits: list[tuple[int, int, str]] = []

    def put(self, start: int, end: int, text: str) -> None:
        self._edits.append((start, end, text))

    def text(self, finish: Callable[[str], str]) -> str:
        pieces, last = [], 0
        for start, end, text in sorted(self._edits, key=lambda edit: edit[:2]):
            pieces += [self._text[last:start], text]
            last = end
        return finish("".join([*pieces, self._text[last:]]))
