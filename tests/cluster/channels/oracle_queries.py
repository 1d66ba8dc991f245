"""Draws queries of channels as text, over the datasets of `oracle_data`. Ordered ones have an order without ties."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.cluster.channels.oracle_data import PLAIN, DrawnSchema

__all__ = ["draw_query"]


def draw_query(rng: random.Random, schema: DrawnSchema = PLAIN) -> str:
    """A query; columns are written with or without their table, in any case."""
    draw = _Draw(rng, schema)
    forms: tuple[Callable[[], str], ...] = (
        draw.rows, draw.rows, draw.joined, draw.joined, draw.grouped, draw.aggregated, draw.distinct, draw.top,
        draw.union, draw.set_operation, draw.with_groups, draw.with_names, draw.subquery, draw.window, draw.radius_join,
        draw.per_record, draw.without_parameters, draw.three_joined, draw.nested, draw.cases,
    )  # fmt: skip
    return rng.choice(forms)()


class _Draw:
    def __init__(self, rng: random.Random, schema: DrawnSchema) -> None:
        self._rng, self._schema, self._one = rng, schema, rng.choice

    def rows(self) -> str:
        r = self._column
        listed = self._one((
            f"{r('id')}, {r('kind')}", f"{r('id')}, {r('at')}, {r('day')}, {r('score')} AS s", "r.*",
            f"{r('id')}, {r('severity')} - :low", f"{r('id')}, {r('tags')}, {r('place')} AS p",
        ))  # fmt: skip
        return f"SELECT {listed} FROM reports r WHERE {self._condition()}"

    def joined(self) -> str:
        r, one = self._column, self._one
        side = one(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"))
        extra = one(("", " AND s.rooms > :low", " AND s.name <> :area", " AND s.rooms BETWEEN :low AND :high"))
        extra = "" if side == "FULL JOIN" else extra
        shown = "" if side.endswith(("SEMI JOIN", "ANTI JOIN")) else ", s.name"
        where = f"({self._condition()} OR {r('id')} IS NULL)"
        return f"SELECT {r('id')}{shown} FROM reports r {side} shelters s ON {r('area')} = s.area{extra} WHERE {where}"

    def grouped(self) -> str:
        r, one = self._column, self._one
        key = one((r("kind"), r("day"), f"{r('severity')} % 3", f"upper({r('kind')})", f"{r('kind')} = :kind"))
        some = one((
            "count(*)", f"max({r('severity')})", f"count(DISTINCT {r('area')})", f"sum({r('severity')})",
            f"avg({r('severity')})", f"min({r('at')})", f"max({r('score')})", f"max_by({r('id')}, {r('_sequence')})",
            f"sum({r('severity')}) FILTER (WHERE {r('kind')} = :kind2)",
        ))  # fmt: skip
        by = one((f"GROUP BY {key}", "GROUP BY 1", "GROUP BY ALL"))
        having = one(("", "", " HAVING count(*) > :low", f" HAVING max({r('severity')}) >= :low"))
        return f"SELECT {key} AS g, {some} AS m FROM reports r WHERE {self._condition()} {by}{having}"

    def aggregated(self) -> str:
        r, one = self._column, self._one
        some = one(
            (f"sum({r('severity')})", f"min({r('kind')})", f"count({r('score')})", f"avg({r('severity')}) + :low")
        )
        return f"SELECT count(*) AS c, {some} AS m FROM reports r WHERE {self._condition()}"

    def distinct(self) -> str:
        r = self._column
        return f"SELECT DISTINCT {r('kind')}, {r('area')} FROM reports r WHERE {self._condition()}"

    def top(self) -> str:
        r, one, rng = self._column, self._one, self._rng
        order = one(
            (f"{r('severity')} DESC", f"{r('score')}", f"{r('at')} DESC NULLS LAST", "2", f"{r('kind')} NULLS FIRST")
        )
        limit = one(("", f" LIMIT {rng.randrange(1, 5)}", f" LIMIT {rng.randrange(1, 5)} OFFSET {rng.randrange(3)}"))
        rows = f"SELECT {r('id')}, {r('severity')} AS s FROM reports r WHERE {self._condition()}"
        return f"{rows} ORDER BY {order}, {r('id')}{limit}"

    def union(self) -> str:
        r = self._column
        first, second = (
            f"SELECT {r('id')} AS i, {r('area')} AS a FROM reports r WHERE {self._condition()}" for _ in "ab"
        )
        return f"{first} UNION ALL {second}"

    def set_operation(self) -> str:
        r, word = self._column, self._one(("UNION", "EXCEPT", "INTERSECT"))
        first = f"SELECT {r('area')} AS a FROM reports r WHERE {self._condition()}"
        return f"{first} {word} SELECT s.area AS a FROM shelters s WHERE s.rooms > :low"

    def with_groups(self) -> str:
        r, side = self._column, self._one(("JOIN", "LEFT JOIN"))
        return (
            f"WITH q AS (SELECT {r('area')} AS a, count(*) AS c FROM reports r WHERE {self._condition()} GROUP BY 1) "
            f"SELECT s.name, q.c FROM shelters s {side} q ON q.a = s.area WHERE s.rooms >= :low"
        )

    def with_names(self) -> str:
        """WITH that hides a dataset, one that uses another, one that is used twice."""
        r = self._column
        body = f"SELECT {r('id')} AS i, {r('area')} AS a, {r('severity')} AS s FROM reports r WHERE {self._condition()}"
        return self._one((
            f"WITH shelters AS ({body}) SELECT x.i FROM shelters x WHERE x.s > :low",
            f"WITH q AS ({body}), p (i, a) AS (SELECT q.i, q.a FROM q WHERE q.s > :low) SELECT p.i, p.a FROM p",
            f"WITH q AS ({body}) SELECT b.i, c.i AS j FROM q b JOIN q c ON b.a = c.a WHERE b.s < c.s",
        ))  # fmt: skip

    def subquery(self) -> str:
        r, negation = self._column, self._one(("", "NOT "))
        inner = self._one((
            f"{negation}EXISTS (SELECT 1 FROM shelters s WHERE s.area = {r('area')} AND s.rooms > :high)",
            f"{r('area')} {negation}IN (SELECT s.area FROM shelters s WHERE s.rooms > :low AND s.area IS NOT NULL)",
            f"{r('severity')} > (SELECT max(s.rooms) FROM shelters s WHERE s.area = {r('area')})",
            f"{r('severity')} < (SELECT count(*) FROM shelters s WHERE s.rooms > 1)",
        ))  # fmt: skip
        return f"SELECT {r('id')} FROM reports r WHERE {self._condition()} AND {inner}"

    def window(self) -> str:
        r, one = self._column, self._one
        over = f"OVER (PARTITION BY {r('kind')} ORDER BY {r('id')})"
        severity, alone = r("severity"), f"count(*) OVER (PARTITION BY {r('area')})"
        what = one((f"row_number() {over}", f"lag({severity}) {over}", f"sum({severity}) {over}", alone))
        where = one(("", " WHERE q.w <= :high"))
        inner = f"SELECT {r('id')} AS i, {what} AS w FROM reports r WHERE {self._condition()}"
        return f"SELECT q.i, q.w FROM ({inner}) q{where}"

    def radius_join(self) -> str:
        r = self._column
        lat, lon = r("lat"), r("lon")
        near = self._one(
            (f"distance({lat}, {lon}, s.lat, s.lon) <= 900", f"distance(s.lat, s.lon, {lat}, {lon}) < :radius")
        )
        side = self._one(("JOIN", "LEFT JOIN"))
        return f"SELECT {r('id')}, s.name FROM reports r {side} shelters s ON {near} WHERE {self._condition()}"

    def per_record(self) -> str:
        r = self._column
        some = self._one(("count(s.name)", "max(s.rooms)", "min(s.name)"))
        return (
            f"SELECT r._sequence, {r('id')}, {some} AS c FROM reports r LEFT JOIN shelters s "
            f"ON s.area = {r('area')} AND s.rooms > :low WHERE {self._condition()} GROUP BY r._sequence, {r('id')}"
        )

    def without_parameters(self) -> str:
        r = self._column
        return self._one((
            f"SELECT {r('id')} FROM reports r WHERE {r('severity')} > 3 OR {r('kind')} LIKE 'f%'",
            f"SELECT {r('kind')}, count(*) AS c FROM reports r GROUP BY {r('kind')}",
            f"SELECT {r('id')}, s.name FROM reports r LEFT JOIN shelters s ON s.area = {r('area')}",
        ))  # fmt: skip

    def three_joined(self) -> str:
        r = self._column
        area = r("area")
        return (
            f"SELECT {r('id')}, s.name, v.who FROM reports r JOIN shelters s ON s.area = {area} "
            f"{self._one(('JOIN', 'LEFT JOIN'))} visits v ON v.area = {area} AND v.who <> :kind "
            f"WHERE {self._condition()}"
        )

    def nested(self) -> str:
        r = self._column
        inner = (
            f"SELECT {r('id')} AS i, {r('severity')} AS s, {r('kind')} AS k FROM reports r WHERE {self._condition()}"
        )
        return self._one((
            f"SELECT q.i FROM ({inner}) q WHERE q.s > :low",
            f"SELECT q.i, t.name FROM ({inner}) q JOIN shelters t ON t.rooms = q.s WHERE q.k = :kind2 OR q.s > :high",
            f"SELECT q.k, count(*) AS c FROM ({inner} ORDER BY i LIMIT 5) q GROUP BY q.k",
        ))  # fmt: skip

    def cases(self) -> str:
        r = self._column
        made = self._one((
            f"CASE WHEN {r('severity')} > :low THEN :kind ELSE {r('kind')} END",
            f"concat({r('kind')}, '/', :area)",
            f"coalesce({r('severity')}, :low) * 2",
            f"{r('at')} > :since",
            f"{r('kind')} IN (:kind, :kind2)",
            f"round(distance({r('lat')}, {r('lon')}, :lat, :lon) / 1000)",
        ))  # fmt: skip
        return f"SELECT {r('id')}, {made} AS made FROM reports r WHERE {self._condition()}"

    def _condition(self, depth: int = 0) -> str:
        rng, r = self._rng, self._column
        if depth < 2 and rng.random() < 0.4:
            word = rng.choice((" AND ", " AND ", " OR "))
            made = "(" + word.join(self._condition(depth + 1) for _ in range(2)) + ")"
            return f"NOT {made}" if rng.random() < 0.1 else made
        place = r("place")
        return rng.choice(
            (
                f"{r('kind')} = :kind", f"{r('area')} = :area", f"{r('severity')} > :low", f":high >= {r('severity')}",
                f"{r('severity')} BETWEEN :low AND :high", f"{r('severity')} NOT BETWEEN :low AND 4",
                f"{r('at')} BETWEEN :since AND :until", f"{r('kind')} IN (:kind, :kind2)",
                f"{r('kind')} NOT IN (:kind, 'flood')", f"{r('kind')} LIKE :pattern", f"{r('area')} NOT LIKE :pattern",
                f"distance({r('lat')}, {r('lon')}, :lat, :lon) <= :radius",
                f":radius > distance(:lat, :lon, {place}.lat, {place}.lon)",
                f"distance({r('lat')}, {r('n')}, :lat, :lon) < :radius",
                f"{r('at')} >= :since", f"{r('day')} = :day", f"{r('day')} <= :day",
                f"{r('severity')} + :low < {r('score')}",
                f"{r('severity')} IS NULL", f"{r('score')} IS NOT NULL", f"{r('score')} < :score",
                f"{r('score')} >= :score",
                f"({r('severity')} > 2) = :flag", f"{r('flag')} = :flag", f"{r('flag')}", f"{r('severity')} <> :big",
                f"{r('severity')} <=> :low", f"NOT {r('kind')} = :kind", f"coalesce({r('severity')}, :low) >= :low",
                f"array_contains({r('tags')}, :kind)", f"upper({r('kind')}) = upper(:kind)",
                f"length({r('kind')}) > :low",
                f"concat({r('kind')}, {r('area')}) = concat(:kind, :area)", f"{r('severity')} % 3 = :low",
                f"CASE WHEN {r('flag')} THEN {r('severity')} > :low ELSE {r('kind')} = :kind END",
                f"(:flag OR {r('kind')} = :kind)", f"{r('score')} * 2 > :low",
            )
        )  # fmt: skip

    def _column(self, role: str) -> str:
        name = self._schema.columns.get(role, role)
        if not name.startswith("`") and self._schema.odd:
            name = self._rng.choice((name, name, name.upper(), name.capitalize()))
        qualified = role in _SHARED or self._rng.random() < 0.6
        return f"{self._one(('r.', 'R.'))}{name}" if qualified else name


# Columns whose names other datasets may have, too.
_SHARED = ("area", "lat", "lon", "at", "_sequence")
