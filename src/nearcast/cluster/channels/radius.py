"""Conditions on a distance, written as an equality of grid cells beside the exact one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.query_tree import conjuncts, to_sql
from nearcast.cluster.channels.source_copies import SourceCopies

__all__ = ["RadiusConditions"]

_NUMBERS = ("int", "bigint", "double")


class RadiusConditions:
    """Of one query. `rewrite` marks the places of cells, `resolve` gives their SQL when parameters are bound.

    own_cells: SQL of the one cell of a point, by marker.
    """

    def __init__(self, prefix: str, types: Mapping[str, str], copies: SourceCopies) -> None:
        self._prefix, self._types, self._copies = prefix, types, copies
        self._numbers = itertools.count()
        self._bounds: dict[str, str | float] = {}
        self.own_cells: dict[str, str] = {}

    def rewrite(self, select: exp.Select) -> None:
        """Add an equality of cells to each distance condition that AND joins, where the copies change nothing."""
        copied: set[int] = set()
        for condition, only in list(_conditions(select)):
            found = self._parts(condition)
            if found is None:
                continue
            arguments, bound = found
            for here, there in ((arguments[:2], arguments[2:]), (arguments[2:], arguments[:2])):
                owner = self._copies.owner(select, here)
                if owner is None or id(owner) in copied or (only is not None and owner is not only):
                    continue
                copied.add(id(self._copy(owner, condition, here, there, bound)))
                break

    def resolve(self, tree: exp.Expr) -> tuple[tuple[str, str, str, str | float], ...]:
        """Replace the marked places by plain names; returns marker, coordinates and bound of the copies."""
        found = []
        for call in list(tree.find_all(exp.Anonymous)):
            name = call.name
            if not name.startswith(self._prefix):
                continue
            parts = [to_sql(part) for part in call.expressions]
            if name.startswith(f"{self._prefix}cells"):
                found.append((name, parts[0], parts[1], self._bounds[name]))
            else:
                self.own_cells[name] = grid.cell(*parts)
            call.replace(exp.column(name))
        return tuple(found)

    def _parts(self, condition: exp.Expr) -> tuple[list[exp.Expr], exp.Expr] | None:
        """The coordinates and the bound of `distance(…) <= bound`, either way round."""
        if isinstance(condition, exp.LT | exp.LTE):
            call, bound = condition.this, condition.expression
        elif isinstance(condition, exp.GT | exp.GTE):
            call, bound = condition.expression, condition.this
        else:
            return None
        call, bound = call.unnest(), bound.unnest()
        if not isinstance(call, exp.Anonymous) or call.name.lower() != grid.FUNCTION or len(call.expressions) != 4:
            return None
        if isinstance(bound, exp.Placeholder):
            if self._types.get(bound.name) not in _NUMBERS:
                return None
        elif not isinstance(bound, exp.Literal) or bound.is_string:
            return None
        return list(call.expressions), bound

    def _copy(
        self,
        source: exp.Expr,
        condition: exp.Expr,
        here: list[exp.Expr],
        there: list[exp.Expr],
        bound: exp.Expr,
    ) -> exp.Expr:
        number = next(self._numbers)
        cells, own, column = (f"{self._prefix}{what}{number}" for what in ("cells", "own", "e"))
        level: exp.Expr
        height: exp.Expr
        if isinstance(bound, exp.Placeholder):
            self._bounds[cells] = bound.name
            level, height = (exp.Placeholder(this=f"#{what}_{bound.name}") for what in ("level", "height"))
        else:
            radius = float(bound.name)
            self._bounds[cells] = radius
            level = exp.Literal.number(grid.level_of(radius))
            height = exp.cast(exp.Literal.number(repr(grid.height_of(grid.level_of(radius)))), "double")
        around = _call(cells, [part.copy() for part in here])
        wrapped, cell = self._copies.explode(source, around, column)
        equal = exp.EQ(this=cell, expression=_call(own, [*(part.copy() for part in there), level, height]))
        condition.replace(exp.Paren(this=exp.and_(equal, condition.copy())))
        return wrapped


def _call(name: str, arguments: list[exp.Expr]) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=arguments)


def _conditions(select: exp.Select) -> Iterator[tuple[exp.Expr, Any]]:
    """Conditions that AND joins, with the only relation that may be copied for each, if not any."""
    where = select.args.get("where")
    if where is not None:
        yield from ((part, None) for part in conjuncts(where.this))
    for join in select.args.get("joins") or []:
        on = join.args.get("on")
        if on is None or join.side in ("RIGHT", "FULL"):
            continue
        only = join.this if join.side == "LEFT" or join.kind in ("SEMI", "ANTI") else None
        yield from ((part, only) for part in conjuncts(on))
