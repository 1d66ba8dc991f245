"""Plans that are made once for a dataset's continuous channels and evaluated for each micro-batch (`reusable_plan`).

A plan holds the base of each shape's subscriptions. A second one, over the same records, holds the deltas: their rows
are replaced as those of the records are, so that a subscription that comes makes no plan invalid. While there are
deltas, one job evaluates both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.cluster.channels.channel_shape import ChannelShape, ShapeState, SubscriptionBase, SubscriptionNames
from nearcast.cluster.channels.delta_plans import DeltaPlans, plan_union
from nearcast.cluster.channels.file_input import FileInput, columns_read
from nearcast.cluster.channels.kept_plan import BatchRecords, KeptPlan, RecordInput, States
from nearcast.cluster.channels.plan_output import PlanOutput, PlanRdd
from nearcast.cluster.channels.reusable_plan import PlanInput
from nearcast.cluster.channels.statement import NUMBERED, levels_in, result_sql
from nearcast.cluster.datasets.dataset_tables import WrittenRecords

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nearcast.cluster.channels.evaluation import Evaluation

__all__ = ["KeptPlans", "PlanKey"]

# A plan is kept when what it reads was unchanged for this many batches.
_UNCHANGED_BATCHES = 2
# More where a dataset is looked up by key meanwhile: a plan with all of a large one takes seconds to make.
_UNCHANGED_LOOKED_UP = 20
# Each task of a kept plan holds all subscriptions. On a cluster: not with more than this.
_MOST_ON_CLUSTER = 300_000
# In one process: not with more bytes than this share of its memory. A hash table takes about four times its rows, and
# while a base is folded there are two of them.
_SHARE_OF_MEMORY = 1 / 30

PlanKey = tuple[str, bool]


class KeptPlans:
    """By dataset, and by whether its micro-batches are long."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self.plans: dict[PlanKey, KeptPlan] = {}
        context = evaluation.spark.sparkContext
        memory = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
        self._deltas = DeltaPlans(evaluation)
        self._most_bytes = int(memory * _SHARE_OF_MEMORY) if str(context.master).startswith("local") else None

    def find(
        self,
        dataset: str,
        states: States,
        schema: StructType,
        records: BatchRecords,
        whole_views: Callable[[], Mapping[str, str]],
    ) -> KeptPlan | None:
        """The plan made before, while it is valid; a new one when more shapes qualify. whole_views: of other datasets.

        Few records are best joined by one task; those of a long batch by all cores, where that needs no exchange.
        """
        key = dataset, isinstance(records, WrittenRecords)
        versions = {shape: shape.inputs_version for shape in states}
        plan = self.plans.get(key)
        if plan is not None and not (plan.valid(states, versions) and plan.records.holds(records)):
            del self.plans[key]
            plan = None
        qualified = [shape for shape, state in states.items() if self._qualifies(shape, state)]
        if any(plan is None or shape not in plan.considered for shape in qualified):
            bases = {shape: (states[shape].base, versions[shape]) for shape in qualified}
            plan = self.plans[key] = self._make(dataset, bases, schema, records, whole_views())
        return plan if plan and plan.bases else None

    def evaluate(self, plan: KeptPlan, records: BatchRecords, states: States) -> pa.Table:
        """Rows (channel, key, row as JSON, position) for new records, of bases and deltas."""
        plan.records.put(records)
        removed = frozenset[int]().union(*(states[shape].removed for shape in plan.bases))
        deltas = {shape: states[shape].delta for shape in plan.bases if states[shape].delta.num_rows}
        if not deltas:
            names, found = plan.names, self._rows(plan.output)
        else:
            plan.delta = delta = self._deltas.current(plan, deltas)
            names = delta.names
            found = pa.concat_tables([self._rows(delta.output), self._deltas.replanned_rows(plan, delta, deltas)])
        return names.matches(found, removed)

    def forget(self, plan: KeptPlan) -> None:
        """Make it again, or not."""
        self.plans = {key: other for key, other in self.plans.items() if other is not plan}

    def drop(self, shape: ChannelShape) -> None:
        """Forget what is kept for a shape that is gone."""
        self._deltas.drop(shape)

    def renewed(self, shape: ChannelShape, base: SubscriptionBase) -> dict[PlanKey, tuple[KeptPlan, KeptPlan]]:
        """Plans with another base of a shape, evaluated once, each with the one that it replaces. Those for long
        batches are made with the next one: that takes not much more than such a batch without a plan."""
        found = {}
        for key, plan in list(self.plans.items()):
            if shape not in plan.bases or plan.sample is None:
                continue
            bases = {**plan.bases, shape: (base, plan.bases[shape][1])}
            made = self._make(key[0], bases, plan.schema, plan.sample, plan.view_of)
            self._rows(made.output)  # broadcasts the bases
            found[key] = plan, made
        return found

    def replace(self, renewed: Mapping[PlanKey, tuple[KeptPlan, KeptPlan]]) -> None:
        """Use renewed plans where those that they replace are still in use."""
        for key, (before, made) in renewed.items():
            if self.plans.get(key) is before:
                self.plans[key] = made

    def _qualifies(self, shape: ChannelShape, state: ShapeState) -> bool:
        needed = _UNCHANGED_LOOKED_UP if shape.looked_up else _UNCHANGED_BATCHES
        if not shape.validated.timeless or shape.unchanged_batches < needed or state.bulky:
            return False
        if self._most_bytes is None:
            return bool(state.base.rows.num_rows <= _MOST_ON_CLUSTER)
        return bool(state.base.rows.nbytes <= self._most_bytes)

    def _make(
        self,
        dataset: str,
        bases: Mapping[ChannelShape, tuple[SubscriptionBase, object]],
        schema: StructType,
        records: BatchRecords,
        view_of: Mapping[str, str],
    ) -> KeptPlan:
        evaluation, sample = self._evaluation, None
        plan_input: RecordInput
        with evaluation.lock:
            if isinstance(records, WrittenRecords):
                columns = columns_read([shape.validated.statement for shape in bases], schema)
                files = plan_input = FileInput(evaluation.spark, schema, records, columns)
                frame = files.spread
            else:
                sample = records.slice(0, 1)
                plan_input = PlanInput(evaluation.spark, schema, sample)
                frame = plan_input.single
            views = {**view_of, dataset: evaluation.view(f"plan {dataset}", frame)}
            queries, kept = {}, {}
            for shape, (base, version) in bases.items():
                if base.frame is None:  # all its rows are in the delta
                    kept[shape] = base, version
                    continue
                levels, view = levels_in(shape.validated, base.rows), f"{base.view}_broadcast"
                queries[shape] = result_sql(shape.validated, views, view, levels, base.bounds)
            union, reusable = plan_union(evaluation, queries)
            kept |= {shape: bases[shape] for shape in reusable}
        names = SubscriptionNames(shape.named(base.rows) for shape, (base, _) in kept.items())
        few = sample is not None
        output = None if union is None else PlanOutput([PlanRdd(union, few=few)], NUMBERED, one_task=few)
        return KeptPlan(dataset, kept, list(bases), schema, view_of, plan_input, sample, output, names)

    def _rows(self, output: PlanOutput | None) -> pa.Table:
        return NUMBERED.empty_table() if output is None else self._evaluation.output_rows(output)
