"""Bounds of the values that a query computes, and of the work for one row, found before Spark sees it.

Spark evaluates constant expressions while it plans, in the driver, where no time limit holds: `repeat('x', 2000000000)`
takes its memory before anything runs. So numbers that make values large must be written in the query, and a value is
estimated as if each column and parameter had a thousand characters or elements. What may grow beyond ten million of
them, or takes more than ten million steps, is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlglot import exp

from nearcast.cluster.channels.query_policy import PolicyError

__all__ = ["check_bounds"]

_NOMINAL = 1_000.0
_LARGEST = 10_000_000.0
_GROUPING_SETS = 64
_MOST_ROWS = 100_000
_ROWS_OF_ONE = 1_000_000.0
_ESCAPED = 6  # characters of one, in JSON, hexadecimal, a URL or base64
# A number that must be written in the query: the argument's name or place, and its largest value.
_NUMBERS: dict[str, tuple[str | int, int]] = {
    "Repeat": ("times", 10_000), "Space": ("this", 10_000), "Pad": ("expression", 10_000),
    "ArrayInsert": ("position", 10_000), "Round": ("decimals", 100), "Ceil": ("decimals", 100),
    "Floor": ("decimals", 100), "ApproxQuantile": ("accuracy", 100_000), "array_repeat": (1, 10_000),
    "format_number": (1, 100), "bround": (1, 100), "ceiling": (1, 100), "histogram_numeric": (1, 10_000),
    "approx_percentile": (2, 100_000), "stack": (0, 1_000), "array_insert": (1, 10_000),
}  # fmt: skip
_ENCODINGS = ("JSONFormat", "Hex", "LowerHex", "ToBase64", "url_encode", "to_json", "to_csv", "hex", "base64", "bin")
_CHOICES = (exp.Coalesce, exp.Greatest, exp.Least, exp.Nullif, exp.If, exp.Nvl2, exp.Case)
_NUMERIC = (exp.Predicate, exp.Connector, exp.Not, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv, exp.Neg)
_TESTS = ("Exists", "ArrayAny", "ArrayAll", "forall")
_GENERATORS = (exp.Explode, exp.ExplodeOuter, exp.Posexplode, exp.PosexplodeOuter, exp.Inline)
_REPLACEMENTS = (exp.Replace, exp.RegexpReplace)


class _Bound(NamedTuple):
    """Characters or elements of a value, and steps to compute it."""

    size: float
    work: float


def check_bounds(tree: exp.Expr) -> None:
    """PolicyError for a query whose values or work may become too large. tree: without WITH."""
    _BoundFinder().query(tree, _NOMINAL)


class _BoundFinder:
    """Of one query. What was found is kept: an expression is asked for several times, and so are all that it contains.

    scope: the size of a column. variables: those of the lambdas around an expression.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[object, ...], _Bound] = {}
        self._queries: dict[tuple[int, float], float] = {}
        self._rows: dict[int, float] = {}  # that a query makes of one row of its datasets, with `explode` and the like

    def query(self, node: Any, outer: float) -> float:
        """The size of the largest value in the rows of a query. outer: in those of the queries around it."""
        key = id(node), outer
        if key not in self._queries:
            self._queries[key] = self._of_query(node, outer)
        return self._queries[key]

    def _of_query(self, node: Any, outer: float) -> float:
        if isinstance(node, exp.SetOperation):
            size = max(self.query(node.left, outer), self.query(node.right, outer))
            self._rows[id(node)] = sum(self._rows.get(id(part), 1.0) for part in (node.left, node.right))
            return size
        if isinstance(node, exp.Subquery):
            size = self.query(node.this, outer)
            self._rows[id(node)] = self._rows.get(id(node.this), 1.0)
            return size
        if isinstance(node, exp.Table):
            return _NOMINAL
        if not isinstance(node, exp.Select):
            return outer
        origin = node.args.get("from_")
        joins = node.args.get("joins") or []
        laterals = node.args.get("laterals") or []
        sources = ([origin.this] if origin else []) + [join.this for join in joins]
        scope = max([outer, *(self.query(one, outer) for one in sources if not isinstance(one, exp.Lateral))])
        rows = math.prod(self._rows.get(id(one), 1.0) for one in sources)
        for lateral in (*laterals, *(one for one in sources if isinstance(one, exp.Lateral))):
            inner = lateral.this
            if isinstance(inner, exp.Query):
                scope = max(scope, self.query(inner, scope))
                rows *= self._rows.get(id(inner), 1.0)
            else:
                found = self.value(inner, scope, {}).size
                scope, rows = max(scope, found), rows * found
        for one in node.find_all(*_GENERATORS):
            if one.parent_select is node and not one.find_ancestor(exp.Lateral):
                rows *= self.value(one, scope, {}).size
        self._rows[id(node)] = rows
        if rows > _ROWS_OF_ONE:
            raise PolicyError(f"makes {_about(rows)} rows of one; at most {_ROWS_OF_ONE:.0f} are allowed", node)
        _check_grouping(node.args.get("group"))
        _check_limit(node.args.get("limit"))
        for part in node.iter_expressions():
            if not isinstance(part, exp.From | exp.Join | exp.Lateral | exp.Limit):
                self.value(part, scope, {})
        for join in joins:
            if (condition := join.args.get("on")) is not None:
                self.value(condition, scope, {})
        return max([1.0, *(self.value(one, scope, {}).size for one in node.expressions)])

    def value(self, node: exp.Expr, scope: float, variables: Mapping[str, float]) -> _Bound:
        """Of an expression. PolicyError if it is too large."""
        key = id(node), scope, *sorted(variables.items())
        if key not in self._values:
            self._values[key] = self._of_value(node, scope, variables)
        return self._values[key]

    def _of_value(self, node: exp.Expr, scope: float, variables: Mapping[str, float]) -> _Bound:
        if isinstance(node, exp.Query):
            return _Bound(self.query(node, scope), 1.0)
        if isinstance(node, exp.Literal):
            return _Bound(float(len(node.name)) if node.is_string else 1.0, 1.0)
        if isinstance(node, exp.Identifier | exp.Column | exp.Dot | exp.Placeholder):
            return _Bound(variables.get(_first_name(node), scope), 1.0)
        found = self._function(node, scope, variables)
        for amount, what in ((found.size, "characters or elements"), (found.work, "steps for one row")):
            if amount > _LARGEST:
                raise PolicyError(
                    f"{_name(node)} may make {_about(amount)} {what}, if columns and parameters have a thousand; "
                    f"{_LARGEST:.0f} are allowed",
                    node,
                )
        return found

    def _function(self, node: exp.Expr, scope: float, variables: Mapping[str, float]) -> _Bound:
        name = _name(node)
        repeated = _written_number(node, name)
        lambdas = [part for part in node.iter_expressions() if isinstance(part, exp.Lambda)]
        plain = [part for part in node.iter_expressions() if not isinstance(part, exp.Lambda)]
        parts = [self.value(part, scope, variables) for part in plain]
        sizes = [part.size for part in parts]
        size, work = max(1.0, sum(sizes)), 1.0 + sum(part.work for part in parts)
        if lambdas:
            return self._higher_order(node, name, lambdas, size, work, scope, variables)
        if isinstance(node, _NUMERIC):
            return _Bound(1.0, work)
        if isinstance(node, exp.Case):
            branches = [*(one.args["true"] for one in node.args["ifs"]), node.args.get("default")]
            return _Bound(max(self.value(one, scope, variables).size for one in branches if one is not None), work)
        if isinstance(node, _CHOICES):
            return _Bound(max([1.0, *sizes]), work)
        if isinstance(node, _REPLACEMENTS):
            made = node.args.get("replacement")
            longest = 1.0 + (self.value(made, scope, variables).size if made is not None else 0.0)
            return _Bound(sizes[0] * longest, work)
        if isinstance(node, exp.Levenshtein):
            return _Bound(1.0, work + math.prod(sizes[:2]))
        if isinstance(node, exp.ArrayToString):
            return _Bound(sizes[0] * (1.0 + sum(sizes[1:])), work)
        if isinstance(node, exp.AggFunc):
            return _Bound(size * _NOMINAL if isinstance(node, exp.ArrayAgg | exp.GroupConcat) else size, work)
        if repeated is not None:
            return _Bound(max(size, repeated) if name == "Pad" else size * max(1.0, repeated), work)
        return _Bound(size * (_ESCAPED if name in _ENCODINGS else 1), work)

    def _higher_order(
        self,
        node: exp.Expr,
        name: str,
        lambdas: list[exp.Lambda],
        size: float,
        work: float,
        scope: float,
        variables: Mapping[str, float],
    ) -> _Bound:
        """A function of each element: there are `size` of them at most, and all together they are that large."""
        if isinstance(node, exp.Reduce):
            return self._reduce(node, lambdas[0], size, work, scope, variables)
        total = size
        for one in lambdas:
            names = [part.name for part in one.expressions]
            small = self.value(one.this, scope, {**variables, **dict.fromkeys(names, 0.0)})
            large = self.value(one.this, scope, {**variables, **dict.fromkeys(names, size)})
            total = max(total, size * small.size + large.size - small.size)
            work += size * large.work
        return _Bound(1.0 if name in _TESTS else total, work)

    def _reduce(
        self,
        node: exp.Reduce,
        merge: exp.Lambda,
        size: float,
        work: float,
        scope: float,
        variables: Mapping[str, float],
    ) -> _Bound:
        """The accumulator grows with each element; one that doubles has no bound."""
        accumulator, *others = [part.name for part in merge.expressions]

        def merged(before: float) -> _Bound:
            return self.value(merge.this, scope, {**variables, **dict.fromkeys(others, size), accumulator: before})

        one, two = merged(_LARGEST / 8), merged(_LARGEST / 4)
        if two.size - one.size > 1.01 * _LARGEST / 8:
            raise PolicyError(f"{accumulator} of {_name(node)} grows without a bound", node)
        grown = max(0.0, one.size - _LARGEST / 8)
        return _Bound(size + size * min(grown, one.size), work + size * one.work)


def _written_number(node: exp.Expr, name: str) -> float | None:
    """The number that makes the value of a function large, which must be a literal within its range."""
    if name == "printf" or name == "format_string":
        return _format_width(node)
    if name == "window" and len(node.expressions) > 2:  # Spark makes as many parts of a plan as windows overlap
        raise PolicyError("a window that slides is not allowed in a channel; write window(time, duration)", node)
    if isinstance(node, exp.ApproxDistinct):
        if (accuracy := node.args.get("accuracy")) is not None and not 0.01 <= _number(accuracy, name) <= 1:
            raise PolicyError("the accuracy of approx_count_distinct is a number of 0.01 to 1", node)
        return None
    if name not in _NUMBERS:
        return None
    where, largest = _NUMBERS[name]
    if isinstance(where, str):
        given = node.args.get(where)
    else:
        given = node.expressions[where] if len(node.expressions) > where else None
    if given is None:
        return 1.0
    value = _number(given, name)
    if not abs(value) <= largest:
        raise PolicyError(f"{name.lower()} takes {value:g}; at most {largest} are allowed", given)
    return value if largest > 100 and name not in ("ApproxQuantile", "approx_percentile") else 1.0


def _number(node: exp.Expr, name: str) -> float:
    sign = -1.0 if isinstance(node, exp.Neg) else 1.0
    node = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(node, exp.Literal) or node.is_string:
        raise PolicyError(f"{name.lower()} needs a number that is written in the query", node)
    return sign * float(node.name)


def _format_width(node: exp.Expr) -> float:
    text = node.expressions[0] if node.expressions else None
    if not isinstance(text, exp.Literal) or not text.is_string or re.search(r"\d{4}", text.name):
        raise PolicyError("a format is a text in the query, with widths of at most three digits", node)
    return 1_000.0


def _check_grouping(group: Any) -> None:
    """Spark makes a part of a plan for each grouping set: CUBE of n columns has 2 to the power of n."""
    if group is None:
        return
    sets = 1.0
    plain = [one for one in group.expressions if not isinstance(one, exp.Cube | exp.Rollup | exp.GroupingSets)]
    for one in group.find_all(exp.Cube, exp.Rollup, exp.GroupingSets):
        count = len(one.expressions) or len(plain)
        sets *= 2.0 ** min(count, 64) if isinstance(one, exp.Cube) else count + 1.0
    if sets > _GROUPING_SETS:
        raise PolicyError(f"{_about(sets)} grouping sets; {_GROUPING_SETS} are allowed", group)


def _check_limit(limit: Any) -> None:
    """Spark allocates what a LIMIT with ORDER BY may return."""
    count = limit.expression if isinstance(limit, exp.Limit) else None
    if isinstance(count, exp.Literal) and not float(count.name) <= _MOST_ROWS:
        raise PolicyError(f"LIMIT is {count.name}; at most {_MOST_ROWS} rows are allowed", count)


def _first_name(node: exp.Expr) -> str:
    """`x` of x, x.field and x.field.inner."""
    if isinstance(node, exp.Column):
        return str((node.args.get("catalog") or node.args.get("db") or node.args.get("table") or node.this).name)
    while isinstance(node, exp.Dot):
        node = node.this
    return str(node.name)


def _name(node: exp.Expr) -> str:
    return node.name.lower() if isinstance(node, exp.Anonymous) else type(node).__name__


def _about(amount: float) -> str:
    return f"{amount:.0f}" if amount < 1e15 else "more than 10^15"
