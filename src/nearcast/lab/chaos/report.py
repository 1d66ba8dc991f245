"""What a chaos run prints and writes."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

import nearcast
from nearcast.lab.chaos.checker.verdict import LOSSES

if TYPE_CHECKING:
    from nearcast.lab.chaos.checker.verdict import Verdict

__all__ = ["commit", "verdict_lines", "verdict_table"]

_THIRDS = ("start", "middle", "end", "after")


def commit() -> str:
    """The commit of the code that runs, with a mark when files were changed; the version when it is not a checkout."""
    folder = Path(nearcast.__file__).parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short", "HEAD")
    return f"{found}{' with changes' if git('status', '--porcelain', str(folder)) else ''}" if found else "unknown"


def verdict_table(verdict: Verdict) -> Table:
    """A row per fault. Losses are given for its start, middle and end, and for the time after it."""
    table = Table(box=None, pad_edge=False)
    for title in ("fault", "at", "s", "published", "receipts", "not stored", "not processed", "not delivered", "dead",
                  "recovered s", "caught up s", "stalled"):  # fmt: skip
        table.add_column(title, justify="left" if title in ("fault", "at") else "right")
    for fault in verdict.faults:
        losses = {(loss["where"], loss["when"]): loss["count"] for loss in fault["lost"]}
        cells = ["/".join(str(losses.get((where, third), 0)) for third in _THIRDS) for where in LOSSES]
        cells = ["0" if cell == "0/0/0/0" else cell for cell in cells]
        target = "all sites" if len(fault["target"]) > 2 else " ".join(fault["target"])
        figures = (fault["seconds"], fault["published"], fault["receipts"])
        times = (fault["recover_seconds"], fault["caught_up_seconds"], fault["stalled"])
        table.add_row(fault["kind"], target, *map(str, figures), *cells, *map(str, times))
    return table


def verdict_lines(verdict: Verdict) -> list[str]:
    """The counts, and each promise that was broken, with examples."""
    lines = [", ".join(f"{name}: {count:,}" for name, count in verdict.counts.items()) + "."]
    for promise, count in verdict.broken.items():
        lines.append(f"BROKEN  {promise}: {count:,}")
        lines += [f"        {example}" for example in verdict.examples[promise]]
    lines.append("Every promise was kept." if verdict.kept else "Promises were broken.")
    return lines
