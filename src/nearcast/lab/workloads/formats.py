"""Readers of the published data sets the workloads start from.

A file that is not of the format is refused in one line. A row that cannot be used is counted by reason: real
files have such rows, and the user should see how many were left out or corrected.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from nearcast.coordinates.geography import great_circle_km
from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nearcast.placement.arrays import Bools, Floats, Ints

__all__ = [
    "Cities",
    "Follows",
    "Incidents",
    "Positions",
    "read_cab_positions",
    "read_cities",
    "read_follows",
    "read_incidents",
    "read_towers",
]

# Light in fibre covers about 200 km per ms; a round trip cannot be faster than light in a vacuum.
VACUUM_KM_PER_MS = 299.792458
FIBRE_KM_PER_MS = 200.0


@dataclass(frozen=True)
class Follows:
    """Who follows whom, as positions in `users`."""

    users: Sequence[str]
    follower: Ints
    followee: Ints
    skipped: Mapping[str, int]


@dataclass(frozen=True)
class Positions:
    """Positions in degrees; with `who` and `time_s` they are traces."""

    lat: Floats
    lon: Floats
    who: NDArray[Any]
    time_s: Floats
    skipped: Mapping[str, int]


@dataclass(frozen=True)
class Cities:
    """Cities and the round trip between each two, symmetric, 0 on the diagonal."""

    names: Sequence[str]
    lat: Floats
    lon: Floats
    rtt_ms: Floats
    skipped: Mapping[str, int]


@dataclass(frozen=True)
class Incidents:
    """Time-stamped events with a position: reports, outages, shelters."""

    time_s: Floats
    operation: NDArray[Any]
    name: NDArray[Any]
    lat: Floats
    lon: Floats
    text: NDArray[Any]
    skipped: Mapping[str, int]


def read_follows(path: Path) -> Follows:
    """An edge list or KDD Cup 2012 `user_sns`: follower and followee, a blank, tab or comma between."""
    skipped: Counter[str] = Counter()

    def odd(_: Any) -> str:
        skipped["not two ids"] += 1
        return "skip"

    try:
        with path.open() as stream:
            line = stream.readline()
        delimiter = next((d for d in ("\t", ",") if d in line), " ")
        table = pa.csv.read_csv(
            path,
            pa.csv.ReadOptions(column_names=["follower", "followee"]),
            pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=odd),
            pa.csv.ConvertOptions(column_types={"follower": pa.string(), "followee": pa.string()}),
        )
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise _unreadable(path, error) from None
    both = pa.concat_arrays([c.combine_chunks() for c in table.columns]).dictionary_encode()
    users = both.dictionary.to_pylist()
    follower, followee = both.indices.to_numpy().astype(np.int64).reshape(2, -1)
    known = np.array([u not in ("", None) for u in users])
    ok = known[follower] & known[followee]
    skipped["empty id"] = int((~ok).sum())
    itself = ok & (follower == followee)
    skipped["follows itself"] = int(itself.sum())
    ok &= ~itself
    pairs = pd.DataFrame({"a": follower[ok], "b": followee[ok]})
    twice = pairs.duplicated().to_numpy()
    skipped["there twice"] = int(twice.sum())
    pairs = pairs[~twice]
    if pairs.empty:
        raise InputError(f"{path}, row 1: no line has a follower and a followee")
    return Follows(users, pairs["a"].to_numpy(), pairs["b"].to_numpy(), _some(skipped))


def read_towers(path: Path) -> Positions:
    """Positions of towers or users: any CSV with latitude and longitude columns, as in the EUA data set."""
    rows = _table(path, ("latitude", "longitude"))
    skipped: Counter[str] = Counter()
    lat, lon = _numbers(rows["latitude"]), _numbers(rows["longitude"])
    ok = _on_earth(lat, lon, skipped)
    if not ok.any():
        raise InputError(f"{path}, row 1: no row has a position")
    none = np.zeros(int(ok.sum()))
    return Positions(lat[ok], lon[ok], np.array([""] * len(none), dtype=object), none, _some(skipped))


def read_cab_positions(path: Path) -> Positions:
    """Traces of cabs: CSV with cab, lat, lon and ts (Unix seconds), in order of time; may be gzipped."""
    rows = _table(path, ("cab", "lat", "lon", "ts"))
    skipped: Counter[str] = Counter()
    lat, lon, time_s = (_numbers(rows[c]) for c in ("lat", "lon", "ts"))
    ok = _on_earth(lat, lon, skipped)
    late = ok & ~np.isfinite(time_s)
    skipped["no time"] = int(late.sum())
    ok &= ~late
    if not ok.any():
        raise InputError(f"{path}, row 1: no row has a position and a time")
    order = np.argsort(time_s[ok], kind="stable")
    lat, lon, time_s, cab = (lat[ok][order], lon[ok][order], time_s[ok][order], rows["cab"].to_numpy()[ok][order])
    return Positions(lat, lon, cab, time_s, _some(skipped))


def read_incidents(path: Path) -> Incidents:
    """Disaster events: CSV with ts, op (add, update, remove), id, lat, lon, text; may be gzipped.

    Rows whose latitude and longitude are swapped are corrected: swapping brings them nearer to the others.
    """
    rows = _table(path, ("ts", "op", "id", "lat", "lon", "text"))
    skipped: Counter[str] = Counter()
    lat, lon, time_s = (_numbers(rows[c]) for c in ("lat", "lon", "ts"))
    ok = np.isfinite(lat) & np.isfinite(lon)
    skipped["no position"] = int((~ok).sum())
    for reason, bad in (
        ("no time", ~np.isfinite(time_s)),
        ("unknown operation", ~rows["op"].isin(["add", "update", "remove"]).to_numpy()),
    ):
        skipped[reason] = int((ok & bad).sum())
        ok &= ~bad
    if not ok.any():
        raise InputError(f"{path}, row 1: no row has a time, an operation and a position")
    lat, lon, time_s = lat[ok], lon[ok], time_s[ok]
    middle_lat, middle_lon = np.median(lat), np.median(lon)
    swapped = np.hypot(lon - middle_lat, lat - middle_lon) < np.hypot(lat - middle_lat, lon - middle_lon)
    skipped["latitude and longitude swapped back"] = int(swapped.sum())
    lat, lon = np.where(swapped, lon, lat), np.where(swapped, lat, lon)
    text = {c: rows[c].fillna("").to_numpy()[ok] for c in ("op", "id", "text")}
    return Incidents(time_s, text["op"], text["id"], lat, lon, text["text"], _some(skipped))


def read_cities(servers: Path, pings: Path, country: str | None = None) -> Cities:
    """WonderProxy's cities (id, name, country, latitude, longitude) and pings (source, destination, avg).

    A round trip is the mean of both directions; one faster than light becomes what fibre along the great
    circle takes. A city without a ping to every other one is left out, worst connected first.
    """
    rows = _table(servers, ("id", "name", "country", "latitude", "longitude"))
    if country is not None:
        rows = rows[rows["country"] == country]
        if rows.empty:
            raise InputError(f"{servers}, row 1: no city is in {country!r}")
    skipped: Counter[str] = Counter()
    lat, lon = _numbers(rows["latitude"]), _numbers(rows["longitude"])
    ok = _on_earth(lat, lon, skipped)
    rows, lat, lon = rows[ok], lat[ok], lon[ok]
    ids = pd.Index(rows["id"])
    ping = _table(pings, ("source", "destination", "avg"))
    source, destination = ids.get_indexer(ping["source"]), ids.get_indexer(ping["destination"])
    if country is None:
        skipped["ping of an unknown city"] = int(((source < 0) | (destination < 0)).sum())
    time = _numbers(ping["avg"])
    ok = (source >= 0) & (destination >= 0) & (time > 0) & np.isfinite(time)
    rtt = np.full((len(rows), len(rows)), np.nan)
    rtt[source[ok], destination[ok]] = time[ok]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a pair pinged in neither direction has no mean
        rtt = np.nanmean([rtt, rtt.T], axis=0)
    np.fill_diagonal(rtt, 0.0)
    keep = _fully_connected(rtt)
    skipped["city without a ping to every other"] = len(rows) - len(keep)
    rtt, lat, lon = rtt[np.ix_(keep, keep)], lat[keep], lon[keep]
    distance = great_circle_km(lat[:, None], lon[:, None], lat[None, :], lon[None, :])
    too_fast = rtt < 2 * distance / VACUUM_KM_PER_MS
    skipped["pair faster than light"] = int(too_fast.sum()) // 2
    rtt = np.where(too_fast, 2 * distance / FIBRE_KM_PER_MS, rtt)
    return Cities(rows["name"].to_numpy()[keep].tolist(), lat, lon, rtt, _some(skipped))


def _fully_connected(rtt: Floats) -> Ints:
    keep = np.arange(len(rtt))
    while np.isnan(rtt[np.ix_(keep, keep)]).any():
        holes = np.isnan(rtt[np.ix_(keep, keep)]).sum(axis=1)
        keep = np.delete(keep, int(np.argmax(holes)))
    return keep


def _table(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    """The columns as text, found whatever their case."""
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, na_values=[""])
    except (OSError, ValueError, pd.errors.ParserError) as error:
        raise _unreadable(path, error) from None
    by_name = {str(name).lower(): name for name in rows.columns}
    for column in columns:
        if column not in by_name:
            have = ", ".join(map(str, rows.columns))
            raise InputError(f"{path}, row 0 (header): column {column!r} is missing; the file has: {have}")
    if rows.empty:
        raise InputError(f"{path}, row 1: the file has a header and no rows")
    return rows[[by_name[c] for c in columns]].set_axis(list(columns), axis=1)


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}, row 0: there is no such file")
    return InputError(f"{path}, row 0: cannot be read: {str(error).splitlines()[0]}")


def _numbers(column: pd.Series[str]) -> Floats:
    return np.asarray(pd.to_numeric(column, errors="coerce"), dtype=np.float64)


def _on_earth(lat: Floats, lon: Floats, skipped: Counter[str]) -> Bools:
    known = np.isfinite(lat) & np.isfinite(lon)
    inside: Bools = known & (np.abs(lat) <= 90) & (np.abs(lon) <= 180) & ((lat != 0) | (lon != 0))
    skipped["no position"] += int((~known).sum())
    skipped["not on Earth"] += int((known & ~inside).sum())
    return inside


def _some(skipped: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in skipped.items() if count}
