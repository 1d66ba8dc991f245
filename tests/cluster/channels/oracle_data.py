"""Schemas, rows and values of parameters for the comparison of channel queries with DuckDB."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from nearcast.domain.dataset import DatasetSpec

__all__ = ["PLAIN", "TYPES", "DrawnSchema", "draw_schema", "draw_tables", "draw_value"]

TYPES = {
    "kind": "string", "kind2": "string", "area": "string", "pattern": "string", "low": "int", "high": "int",
    "score": "double", "lat": "double", "lon": "double", "radius": "double", "since": "timestamp",
    "until": "timestamp", "day": "date", "flag": "boolean", "big": "bigint",
}  # fmt: skip
KINDS, AREAS = ("fire", "flood", "quake"), ("north", "south", "east")
_ODD_KINDS = (*KINDS, "Fire", "", "naïve ☂", "火事", "it's -- ;", "100%", "a_b")
_ODD_AREAS = (*AREAS, "NORTH", "e\u0301st", "ést")
_START = datetime(2026, 3, 1, tzinfo=UTC)
_SPAN_US = 10**11

# What each column of `reports` may be called. Some are names that the rewrite, or Spark's grammar, use themselves.
_NAMES: dict[str, tuple[str, ...]] = {
    "id": ("id", "Id", "`order`"),
    "kind": ("kind", "KIND", "`größe`", "nc__value_kind"),
    "area": ("area", "row", "`the area`"),
    "severity": ("severity", "`select`", "number", "nc__p0"),
    "score": ("score", "position", "x"),
    "n": ("n", "nc__n", "dx"),
    "lat": ("lat", "Latitude"),
    "lon": ("lon", "lng"),
    "at": ("at", "`timestamp`", "time"),
    "day": ("day", "`date`"),
    "place": ("place", "key"),
    "flag": ("flag", "`true`"),
    "tags": ("tags", "explode"),
}
_ARROW = {
    "STRING": pa.string(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(),
    "DECIMAL(12,3)": pa.decimal128(12, 3), "TIMESTAMP": pa.timestamp("us", "UTC"), "DATE": pa.date32(),
    "BOOLEAN": pa.bool_(), "ARRAY<STRING>": pa.list_(pa.string()),
    "STRUCT<lat: DOUBLE, lon: DOUBLE>": pa.struct([("lat", pa.float64()), ("lon", pa.float64())]),
}  # fmt: skip
_META = (("_sequence", pa.int64()), ("_arrived", _ARROW["TIMESTAMP"]))
_SHELTERS = {"name": "STRING", "area": "STRING", "rooms": "INT", "lat": "DOUBLE", "lon": "DOUBLE"}
_VISITS = {"who": "STRING", "area": "STRING", "at": "TIMESTAMP"}


@dataclass(frozen=True)
class DrawnSchema:
    """columns: how each column of `reports` is written in SQL. types: of them, in the order of the table.
    odd: whether rows and values have what is rare: NaN, empty texts, other scripts, the poles."""

    columns: Mapping[str, str]
    types: Mapping[str, str]
    odd: bool = False

    @property
    def datasets(self) -> dict[str, DatasetSpec]:
        reports = ", ".join(f"{self.columns[role]} {kind}" for role, kind in self.types.items())
        shelters, visits = (", ".join(f"{k} {v}" for k, v in c.items()) for c in (_SHELTERS, _VISITS))
        specs = (
            DatasetSpec("reports", reports, "fed.reports"),
            DatasetSpec("shelters", shelters),
            DatasetSpec("visits", visits, "fed.visits", "area"),  # joined by area: looked up by key
        )
        return {spec.name: spec for spec in specs}


_PLAIN_TYPES = {
    "id": "STRING", "kind": "STRING", "area": "STRING", "severity": "INT", "score": "DOUBLE", "n": "DOUBLE",
    "lat": "DOUBLE", "lon": "DOUBLE", "at": "TIMESTAMP", "day": "DATE", "place": "STRUCT<lat: DOUBLE, lon: DOUBLE>",
    "flag": "BOOLEAN", "tags": "ARRAY<STRING>",
}  # fmt: skip
PLAIN = DrawnSchema(MappingProxyType({role: role for role in _PLAIN_TYPES}), MappingProxyType(_PLAIN_TYPES))


def draw_schema(rng: random.Random) -> DrawnSchema:
    """Names, types and the order of columns."""
    roles = list(_PLAIN_TYPES)
    rng.shuffle(roles)
    types = {role: _PLAIN_TYPES[role] for role in roles}
    types["severity"] = rng.choice(("SMALLINT", "INT", "BIGINT"))
    types["score"] = rng.choice(("DOUBLE", "DECIMAL(12,3)"))
    return DrawnSchema({role: rng.choice(_NAMES[role]) for role in roles}, types, odd=True)


def draw_tables(schema: DrawnSchema, rng: random.Random, rows: int) -> dict[str, pa.Table]:
    """The rows of all datasets."""
    reports = [_report(schema, rng, n) for n in range(rows)]
    fields = [(schema.columns[role].strip("`"), _ARROW[kind]) for role, kind in schema.types.items()]
    areas = (*AREAS, "west", None)
    shelters = [
        {"name": f"s{n}", "area": rng.choice(areas), "rooms": rng.randrange(6), "lat": 0.02 * rng.random(), "lon": 0.01}
        for n in range(7)
    ]
    visits = [
        {"who": f"u{n}", "area": rng.choice(AREAS), "at": _START, "_sequence": n + 1, "_arrived": _START}
        for n in range(6)
    ]
    return {
        "reports": pa.Table.from_pylist(reports, pa.schema([*fields, *_META])),
        "shelters": pa.Table.from_pylist(shelters, pa.schema([(k, _ARROW[v]) for k, v in _SHELTERS.items()])),
        "visits": pa.Table.from_pylist(visits, pa.schema([*((k, _ARROW[v]) for k, v in _VISITS.items()), *_META])),
    }


def _report(schema: DrawnSchema, rng: random.Random, n: int) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.08 else value

    lat, lon = _point(schema, rng)
    score: Any = rng.randrange(16) / 2
    if schema.types["score"] != "DOUBLE":
        score = Decimal(score)
    elif schema.odd and rng.random() < 0.1:
        score = rng.choice((math.nan, math.inf, -0.0))
    made = {
        "id": f"r{n}",
        "kind": maybe(rng.choice(_ODD_KINDS if schema.odd else KINDS)),
        "area": maybe(rng.choice(_ODD_AREAS if schema.odd else AREAS)),
        "severity": maybe(rng.randrange(8)),
        "score": maybe(score),
        "n": lon,
        "lat": maybe(lat),
        "lon": lon,
        "at": maybe(_START + timedelta(microseconds=rng.randrange(_SPAN_US))),
        "day": maybe(date(2026, 3, rng.randrange(1, 4))),
        "place": {"lat": lat, "lon": lon},
        "flag": maybe(rng.random() < 0.5),
        "tags": maybe([maybe(rng.choice(KINDS)) for _ in range(rng.randrange(3))]),
    }
    row = {schema.columns[role].strip("`"): value for role, value in made.items()}
    return row | {"_sequence": n + 1, "_arrived": _START}


def _point(schema: DrawnSchema, rng: random.Random) -> tuple[float, float]:
    lat, lon = 0.02 * rng.random(), 0.02 * rng.random()
    if schema.odd and rng.random() < 0.2:  # the poles, the antimeridian, no number at all
        return rng.choice(((90.0, lon), (-89.9999, 120 + lon), (lat, 180.0), (lat, -179.995), (math.nan, lon)))
    return lat, lon


def draw_value(name: str, rng: random.Random, odd: bool = False) -> Any:
    """A value for a parameter."""
    match TYPES[name]:
        case "string":
            patterns = ("f%", "%o%", "q_ake", "x", "%☂", "", "%")
            texts = {"pattern": patterns, "area": _ODD_AREAS if odd else AREAS}
            return rng.choice(texts.get(name, _ODD_KINDS if odd else (*KINDS, "it's -- ;")))
        case "double":
            return _double(name, rng, odd)
        case "timestamp":
            return (_START + timedelta(microseconds=rng.randrange(_SPAN_US))).isoformat()
        case "date":
            return f"2026-03-0{rng.randrange(1, 5)}"
        case "boolean":
            return rng.random() < 0.5
        case _:
            return rng.randrange(-1, 8)


def _double(name: str, rng: random.Random, odd: bool) -> float:
    choices: dict[str, Callable[[], float]] = {
        "radius": lambda: rng.choice((100.0, 700.0, 1500.0, *((0.0, 5e4, 3e7) if odd else ()))),
        "lat": lambda: rng.choice((0.005, 0.01, 0.013, *((90.0, -90.0) if odd else ()))),
        "lon": lambda: rng.choice((0.005, 0.01, 0.013, *((180.0, -180.0, 120.0) if odd else ()))),
    }
    return choices.get(name, lambda: rng.randrange(-2, 18) / 2)()
