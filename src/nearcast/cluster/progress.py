"""What the data cluster is doing, in numbers: for the log, the terminal and anybody who asks."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Count", "Progress"]


@dataclass
class Count:
    """The numbers of one producer: a dataset with its continuous channels, or a repetitive channel."""

    rows: int = 0
    refused: int = 0
    removed: int = 0
    results: int = 0
    batches: int = 0
    lag: int = 0
    seconds: float = 0.0
    problem: str = ""


class Progress:
    """All numbers; producers add to them from their own threads."""

    def __init__(self) -> None:
        self._counts: dict[str, Count] = {}
        self._lock = threading.Lock()

    def add(self, name: str, *, rows: int, refused: int, removed: int, results: int, seconds: float) -> None:
        """A batch or an execution is done."""
        with self._lock:
            count = self._counts.setdefault(name, Count())
            count.rows += rows
            count.refused += refused
            count.removed += removed
            count.results += results
            count.batches += 1
            count.seconds, count.problem = seconds, ""

    def note(self, name: str, *, lag: int | None = None, problem: str | None = None) -> None:
        """How far it is behind, or what is wrong."""
        with self._lock:
            count = self._counts.setdefault(name, Count())
            count.lag = count.lag if lag is None else lag
            count.problem = count.problem if problem is None else problem

    def forget(self, name: str) -> None:
        """It is not running any more."""
        with self._lock:
            self._counts.pop(name, None)

    def snapshot(self) -> dict[str, Count]:
        """The numbers now."""
        with self._lock:
            return {name: Count(**vars(count)) for name, count in sorted(self._counts.items())}

    def metrics(self) -> str:
        """The numbers as Prometheus reads them."""
        lines: list[str] = []
        kinds = {"rows": "counter", "refused": "counter", "removed": "counter", "results": "counter"}
        kinds |= {"batches": "counter", "lag": "gauge", "seconds": "gauge"}
        counts = self.snapshot()
        for field, kind in kinds.items():
            name = {"seconds": "batch_seconds"}.get(field, field) + ("_total" if kind == "counter" else "")
            lines.append(f"# TYPE nearcast_cluster_{name} {kind}")
            lines += [f'nearcast_cluster_{name}{{producer="{p}"}} {getattr(c, field):g}' for p, c in counts.items()]
        return "\n".join(lines) + "\n"
