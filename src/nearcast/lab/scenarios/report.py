"""What came of the runs of a scenario: one table for people, CSV for everything else."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from nearcast.lab.scenarios.ledger import DeliveryLedger, read_ledger
from nearcast.lab.scenarios.recovery import Recovery, recoveries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from nearcast.lab.scenarios.runner import ScenarioRun

__all__ = ["BUSY_LAG_MS", "JudgedRun", "Summary", "judge", "summary_table", "write_tables"]

BIN = 0.1  # s; a row of deliveries.csv
BUSY_LAG_MS = 5.0  # of a publication that was due: beyond that the machine, not the network, is what is measured


@dataclass(frozen=True)
class Summary:
    """One row of the table. above_…_s: the time above the bound after a change, over all changes."""

    policy: str
    deliveries: int
    above_bound: float
    changes: int
    above_p50_s: float
    above_p90_s: float
    above_max_s: float
    not_recovered: int
    topic_moves: int
    client_moves: int
    lost: int
    repeated: int
    lag_ms: float


@dataclass(frozen=True)
class JudgedRun:
    """A run with what it means."""

    run: ScenarioRun
    ledger: DeliveryLedger
    recoveries: list[Recovery]

    def summary(self) -> Summary:
        """The run in one row. Moves are those of the measured time."""
        run, ledger = self.run, self.ledger
        late = ledger.late(run.scenario.bound_ms)
        seconds = [recovery.seconds for recovery in self.recoveries] or [0.0]
        p50, p90, most = (float(value) for value in np.percentile(seconds, [50, 90, 100]))
        kinds = [move.kind for move in run.moves if move.at >= run.start]
        return Summary(
            run.policy, len(ledger), float(late.mean()) if len(ledger) else 0.0, len(self.recoveries), p50, p90, most,
            sum(not recovery.recovered for recovery in self.recoveries), kinds.count("topic"), kinds.count("client"),
            ledger.lost, ledger.repeated, ledger.lag_ms,
        )  # fmt: skip


def judge(run: ScenarioRun) -> JudgedRun:
    """Find out what was late, lost, repeated, and how long after which change."""
    ledger = read_ledger(run.scenario, run.start, run.results)
    return JudgedRun(run, ledger, recoveries(run.scenario, ledger))


def summary_table(runs: Sequence[JudgedRun]) -> Table:
    """A row per policy."""
    table = Table(box=None, pad_edge=False)
    table.add_column("policy")
    for title in (
        "deliveries", "above bound", "changes", "time above: p50", "p90", "max", "not recovered", "topic moves",
        "client moves", "lost", "repeated",
    ):  # fmt: skip
        table.add_column(title, justify="right")
    for s in (run.summary() for run in runs):
        table.add_row(
            s.policy, f"{s.deliveries:,}", f"{s.above_bound:.1%}", str(s.changes), f"{s.above_p50_s:.1f} s",
            f"{s.above_p90_s:.1f} s", f"{s.above_max_s:.1f} s", str(s.not_recovered), str(s.topic_moves),
            str(s.client_moves), str(s.lost), str(s.repeated),
        )  # fmt: skip
    return table


def write_tables(runs: Sequence[JudgedRun], folder: Path) -> None:
    """summary.csv, deliveries.csv (a row per policy, topic and 0.1 s), changes.csv and moves.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "summary.csv", (_rounded(asdict(run.summary())) for run in runs))
    _write(folder / "deliveries.csv", (row for run in runs for row in _deliveries(run)))
    _write(folder / "changes.csv", (row for run in runs for row in _changes(run)))
    _write(folder / "moves.csv", (row for run in runs for row in _moves(run)))


def _deliveries(judged: JudgedRun) -> Iterable[dict[str, Any]]:
    """Deliveries by time of publication; a lost one is above the bound and has no latency."""
    ledger, scenario = judged.ledger, judged.run.scenario
    late = ledger.late(scenario.bound_ms)
    steps = (ledger.published / BIN).astype(np.int64)
    group = ledger.topic * (int(scenario.seconds / BIN) + 1) + steps
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if len(order) else []:
        known = ledger.latency_ms[rows][np.isfinite(ledger.latency_ms[rows])]
        figures = np.percentile(known, [50, 90, 100]) if len(known) else [np.nan] * 3
        yield {
            "policy": judged.run.policy,
            "topic": scenario.topics[ledger.topic[rows[0]]],
            "time_s": round(BIN * int(steps[rows[0]]), 1),
            "deliveries": len(rows),
            "above_bound": int(late[rows].sum()),
            "lost": len(rows) - len(known),
            **{f"{name}_ms": round(float(ms), 2) for name, ms in zip(("p50", "p90", "max"), figures, strict=True)},
        }


def _changes(judged: JudgedRun) -> Iterable[dict[str, Any]]:
    for recovery in judged.recoveries:
        change = recovery.change
        yield {
            "policy": judged.run.policy, "time_s": round(change.at, 3), "subject": change.subject,
            "from": change.source, "to": change.target, "above_bound_s": round(recovery.seconds, 2),
            "recovered": recovery.recovered,
        }  # fmt: skip


def _moves(judged: JudgedRun) -> Iterable[dict[str, Any]]:
    """Also those of the warm-up, whose times are negative."""
    for move in judged.run.moves:
        yield {
            "policy": judged.run.policy, "time_s": round(move.at - judged.run.start, 3), "kind": move.kind,
            "subject": move.subject, "from": move.source, "to": move.target, "reason": move.reason,
        }  # fmt: skip


def _rounded(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in fields.items()}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    listed = list(rows)
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(listed[0]) if listed else ["policy"])
        writer.writeheader()
        writer.writerows(listed)
