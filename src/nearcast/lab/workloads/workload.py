"""A workload: the tables a planner reads, the schedule a driver plays, and where things are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from nearcast.errors import InputError
from nearcast.lab.workloads.schedule import KINDS, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from nearcast.placement.arrays import Floats

__all__ = ["Columns", "SiteMap", "Workload"]

Columns = dict[str, Any]


@dataclass(frozen=True)
class SiteMap:
    """Where the sites are. A heavier place is drawn larger."""

    names: Sequence[str]
    x: Floats
    y: Floats
    weight: Floats
    axes: tuple[str, str] = ("km", "km")


@dataclass(frozen=True)
class Workload:
    """What `nearcast workload NAME` makes. `plan` is what follows `nearcast plan` for these tables."""

    name: str
    about: Mapping[str, Any]
    plan: str
    tables: Mapping[str, Columns]
    places: SiteMap
    schedule: Schedule
    skipped: Mapping[str, int] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write every table as CSV, the schedule as Parquet, and workload.json, which describes them."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, columns in self.tables.items():
            _write(pa.table(columns), folder / f"{name}.csv")
        places = self.places
        columns = {"place": list(places.names), "x": places.x, "y": places.y, "weight": places.weight}
        _write(pa.table(columns), folder / "places.csv")
        pa.parquet.write_table(_as_table(self.schedule), folder / "events.parquet")
        about = {
            "workload": self.name,
            "about": dict(self.about),
            "skipped": dict(self.skipped),
            "plan": self.plan,
            "tables": list(self.tables),
            "axes": list(places.axes),
        }
        (folder / "workload.json").write_text(json.dumps(about, indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> Workload:
        """Read what `save` wrote."""
        try:
            about = json.loads((folder / "workload.json").read_text())
            tables = {name: _columns(pa.csv.read_csv(folder / f"{name}.csv")) for name in about["tables"]}
            places = _columns(pa.csv.read_csv(folder / "places.csv"))
            schedule = _as_schedule(pa.parquet.read_table(folder / "events.parquet"))
        except FileNotFoundError as error:
            raise InputError(f"{error.filename} is missing; `nearcast workload NAME --out` writes it") from None
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise InputError(f"{folder} does not hold a workload: {str(error).splitlines()[0]}") from None
        where = SiteMap(
            [str(p) for p in places["place"]], places["x"], places["y"], places["weight"], tuple(about["axes"])
        )
        return Workload(about["workload"], about["about"], about["plan"], tables, where, schedule, about["skipped"])


def _write(table: pa.Table, path: Path) -> None:
    """CSV with quotes only where a name needs them: Arrow itself would quote all text or none."""
    try:
        pa.csv.write_csv(table, path, pa.csv.WriteOptions(quoting_style="none"))
    except pa.ArrowInvalid:
        pa.csv.write_csv(table, path, pa.csv.WriteOptions(quoting_style="needed"))


def _columns(table: pa.Table) -> Columns:
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _as_table(schedule: Schedule) -> pa.Table:
    def named(positions: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(pa.array(positions, mask=positions < 0), pa.array(names, pa.string()))

    return pa.table(
        {
            "time_s": schedule.time_s,
            "kind": named(schedule.kind.astype(np.int32), KINDS),
            "client": named(schedule.client, schedule.clients),
            "topic": named(schedule.topic, schedule.topics),
            "site": named(schedule.site, schedule.sites),
            "x": schedule.x,
            "y": schedule.y,
            "size": schedule.size,
        }
    )


def _as_schedule(table: pa.Table) -> Schedule:
    def positions(name: str) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        column = table.column(name).unify_dictionaries().combine_chunks()
        codes = column.indices.fill_null(-1).to_numpy().astype(np.int32)
        return codes, tuple(column.dictionary.to_pylist())

    kind, kinds = positions("kind")
    (client, clients), (topic, topics), (site, sites) = map(positions, ("client", "topic", "site"))
    order = np.array([KINDS.index(k) for k in kinds], dtype=np.int8)
    numbers = {name: table.column(name).to_numpy() for name in ("time_s", "x", "y", "size")}
    return Schedule(clients, topics, sites, kind=order[kind], client=client, topic=topic, site=site, **numbers)
