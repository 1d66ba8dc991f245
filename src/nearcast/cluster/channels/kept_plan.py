"""Plans that are kept from one micro-batch to the next, and what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from nearcast.cluster.channels.channel_shape import ChannelShape, ShapeState, SubscriptionBase, SubscriptionNames
from nearcast.cluster.channels.file_input import FileInput
from nearcast.cluster.channels.plan_output import PlanOutput
from nearcast.cluster.channels.reusable_plan import PlanInput
from nearcast.cluster.channels.statement import levels_in, subscription_ddl
from nearcast.cluster.datasets.dataset_tables import WrittenRecords
from nearcast.cluster.datasets.schema import parse_ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from nearcast.cluster.channels.evaluation import Evaluation

__all__ = ["BatchRecords", "DeltaInput", "DeltaPlan", "KeptPlan", "RecordInput", "States"]

States = Mapping[ChannelShape, ShapeState]
BatchRecords = pa.Table | WrittenRecords
"""Of a short micro-batch, or of a long one."""


class RecordInput(Protocol):
    """What a kept plan reads: a `PlanInput` of short batches, or a `FileInput` of long ones."""

    single: DataFrame

    def put(self, records: Any, /) -> None: ...

    def holds(self, records: Any, /) -> bool: ...


class DeltaInput:
    """The delta of one shape in Spark. view: its name there. rows: what it has now."""

    def __init__(self, evaluation: Evaluation, shape: ChannelShape, rows: pa.Table, number: int) -> None:
        schema = parse_ddl(subscription_ddl(shape.validated), "subscriptions")
        self._shape, self.rows = shape, rows
        self._input = PlanInput(evaluation.spark, schema, shape.spark_rows(rows))
        self.view = evaluation.view(f"delta {number}", self._input.single.hint("shuffle_hash"))

    def put(self, rows: pa.Table | None) -> None:
        """None: no rows."""
        if rows is None:
            rows = self.rows.slice(0, 0) if self.rows.num_rows else self.rows
        if rows is not self.rows:
            self._input.put(self._shape.spark_rows(rows))
            self.rows = rows


@dataclass(eq=False)
class DeltaPlan:
    """Of the deltas of some shapes, beside their bases. levels: that it knows. replanned: shapes planned each time.
    output: of bases and deltas. names: of both, while the deltas are `named`."""

    inputs: dict[ChannelShape, DeltaInput] = field(default_factory=dict)
    levels: dict[ChannelShape, dict[str, frozenset[int]]] = field(default_factory=dict)
    replanned: set[ChannelShape] = field(default_factory=set)
    output: PlanOutput | None = None
    names: SubscriptionNames = field(default_factory=lambda: SubscriptionNames(()))
    named: Sequence[pa.Table] = ()

    def covers(self, shape: ChannelShape, rows: pa.Table) -> bool:
        known, levels = self.levels.get(shape), levels_in(shape.validated, rows)
        return known is not None and all(found <= known[name] for name, found in levels.items())


@dataclass(eq=False)
class KeptPlan:
    """Valid while its shapes have these bases and what they read has these versions.

    considered: the shapes for which it was made; those whose part cannot be kept are not in it.
    sample: of the records of short batches, to evaluate it once before it is used.
    """

    dataset: str
    bases: dict[ChannelShape, tuple[SubscriptionBase, object]]
    considered: Sequence[ChannelShape]
    schema: StructType
    view_of: Mapping[str, str]
    records: RecordInput
    sample: pa.Table | None
    output: PlanOutput | None
    names: SubscriptionNames
    delta: DeltaPlan | None = None

    @property
    def many(self) -> bool:
        """Whether it is for long batches, which all cores join."""
        return isinstance(self.records, FileInput)

    def valid(self, states: States, versions: Mapping[ChannelShape, object]) -> bool:
        return all(
            shape in states and states[shape].base is base and versions[shape] == version
            for shape, (base, version) in self.bases.items()
        )
