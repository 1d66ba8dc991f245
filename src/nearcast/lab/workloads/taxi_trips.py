"""Made-up taxi trips in the format of the DEBS 2015 Grand Challenge, with a known number of bad rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from nearcast.lab.workloads.taxi_job import FIELDS, REASONS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_trips"]

BLOCK = 100_000
START_S = 1_356_998_400  # 2013-01-01 00:00:00 UTC
# Of the real rows 1.5 % have no position; the other shares are ours.
SHARES = (0.0005, 0.0005, 0.015, 0.002, 0.002)


def write_trips(path: Path, trips: int, seed: int = 1, trips_per_day: int = 400_000) -> dict[str, int]:
    """Write trips block by block, so that memory stays the same; how many are bad, by reason."""
    rng = np.random.default_rng(seed)
    bad = dict.fromkeys(REASONS, 0)
    with path.open("w") as stream:
        for first in range(0, trips, BLOCK):
            count = min(BLOCK, trips - first)
            reason = rng.choice(len(REASONS) + 1, count, p=[*SHARES, 1 - sum(SHARES)])
            block = _block(rng, first, count, trips_per_day)
            _spoil(block, reason)
            lines = block.to_csv(index=False, header=False, lineterminator="\n").splitlines()
            for row in np.flatnonzero(reason == 0):
                lines[row] = lines[row].rsplit(",", 3)[0]
            stream.write("\n".join(lines) + "\n")
            for number, name in enumerate(REASONS):
                bad[name] += int((reason == number).sum())
    return bad


def _block(rng: np.random.Generator, first: int, count: int, trips_per_day: int) -> pd.DataFrame:
    per_s = trips_per_day / 86_400
    dropoff = START_S + 1800 + (first + np.sort(rng.uniform(0, count, count))) / per_s
    lon = -73.98 + rng.normal(0, 0.02, count)
    lat = 40.75 + rng.normal(0, 0.03, count)
    far = rng.exponential(0.015, (2, count)) * rng.choice([-1, 1], (2, count))
    to_lon, to_lat = lon + far[0], lat + far[1]
    km = np.hypot(far[0] * 84, far[1] * 111)
    seconds = np.clip(60 + km / 20 * 3600, 60, 1800 * 3).astype(np.int64)
    taxi = rng.integers(13_000, size=count)
    fare = 2.5 + 1.5 * km
    time = {
        name: pd.to_datetime(when.astype(np.int64), unit="s").strftime("%Y-%m-%d %H:%M:%S")
        for name, when in (("pickup", dropoff - seconds), ("dropoff", dropoff))
    }
    columns = (
        [f"{t:032X}" for t in taxi], [f"{t + 7:032X}" for t in taxi], time["pickup"], time["dropoff"],
        seconds, (km / 1.609).round(2), lon.round(6), lat.round(6), to_lon.round(6), to_lat.round(6),
        np.where(taxi % 2, "CSH", "CRD"), fare.round(2), 0.5, 0.5, 0.0, 0.0, (fare + 1).round(2),
    )  # fmt: skip
    return pd.DataFrame(dict(zip(FIELDS, columns, strict=True)), dtype=object)


def _spoil(block: pd.DataFrame, reason: np.ndarray) -> None:
    """Make rows bad in place; rows that shall have too few columns are cut when they are written."""
    block.loc[reason == 1, "pickup_longitude"] = "n/a"
    block.loc[reason == 2, ["pickup_longitude", "pickup_latitude", "dropoff_longitude", "dropoff_latitude"]] = 0.0
    block.loc[reason == 3, "dropoff_latitude"] = 12.5
    late = block.loc[reason == 4, "dropoff_datetime"]
    block.loc[reason == 4, "dropoff_datetime"] = block.loc[reason == 4, "pickup_datetime"]
    block.loc[reason == 4, "pickup_datetime"] = late
