"""The data cluster's settings."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["ClusterSpec"]


class ClusterSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `[cluster]` in `nearcast.toml` says.

    warehouse: a folder, or a URI that all of Spark's machines reach. checkpoints: the same, for Spark's checkpoints.
    batch_rows: records in a micro-batch at most. analyse_every: seconds between workload tables, 0 for none.
    keep_results: seconds for which results stay in the warehouse, in whole days. channel_seconds: how long one
    evaluation of a channel may take; a slower channel is switched off. spark: further Spark settings.
    """

    warehouse: Annotated[str, Meta(min_length=1, description="a folder, or a URI such as s3://bucket/nearcast")]
    checkpoints: str = ""
    master: str = "local[*]"
    batch_rows: Annotated[int, Meta(ge=1)] = 250_000
    analyse_every: Annotated[float, Meta(ge=0)] = 60.0
    keep_results: Annotated[float, Meta(ge=0)] = 7 * 86400.0
    channel_seconds: Annotated[float, Meta(ge=1)] = 60.0
    spark: dict[str, str] = {}
