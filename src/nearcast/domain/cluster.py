"""The data cluster's settings."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ClusterSpec"]


@dataclass(frozen=True)
class ClusterSpec:
    """What `[cluster]` in `nearcast.toml` says.

    warehouse: a folder, or a URI that all of Spark's machines reach. checkpoints: the same, for Spark's own notes.
    batch_rows: records in a micro-batch at most. analyse_every: seconds between workload tables, 0 for none.
    keep_results: seconds for which results stay in the warehouse, in whole days. spark: further Spark settings.
    """

    warehouse: str
    checkpoints: str = ""
    master: str = "local[*]"
    batch_rows: int = 10_000
    analyse_every: float = 60.0
    keep_results: float = 7 * 86400.0
    spark: dict[str, str] = field(default_factory=dict)
