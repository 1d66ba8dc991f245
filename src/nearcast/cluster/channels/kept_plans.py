"""Plans that are made once for a dataset's continuous channels and evaluated for each micro-batch (`reusable_plan`).

A plan holds the base of each shape's subscriptions. A second one, over the same records, holds the deltas: their rows
are replaced as those of the records are, so that a subscription that comes makes no plan invalid.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.cluster.channels.channel_shape import ChannelShape, ShapeState, SubscriptionBase, SubscriptionNames
from nearcast.cluster.channels.reusable_plan import PlanInput, is_reusable
from nearcast.cluster.channels.statement import NUMBERED, subscription_ddl
from nearcast.cluster.datasets.schema import parse_ddl
from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from nearcast.cluster.channels.evaluation import Evaluation

__all__ = ["KeptPlan", "KeptPlans", "PlanKey"]

_log = logging.getLogger(__name__)
# From this many records on, all cores join them.
_SPREAD = 4_000
# A plan is kept when what it reads was unchanged for this many batches.
_UNCHANGED_BATCHES = 2
# Each task of a kept plan holds all subscriptions. On a cluster: not with more than this.
_MOST_ON_CLUSTER = 300_000
# In one process: not with more bytes than this share of its memory. A hash table takes about four times its rows, and
# while a base is folded there are two of them.
_SHARE_OF_MEMORY = 1 / 30

States = Mapping[ChannelShape, ShapeState]
PlanKey = tuple[str, bool]


@dataclass(eq=False)
class _DeltaPlan:
    """Of the deltas of some shapes. levels: that it knows. anew: shapes that are planned for each batch."""

    inputs: dict[ChannelShape, PlanInput] = field(default_factory=dict)
    levels: dict[ChannelShape, dict[str, frozenset[int]]] = field(default_factory=dict)
    anew: set[ChannelShape] = field(default_factory=set)
    frame: DataFrame | None = None
    put: dict[ChannelShape, pa.Table] = field(default_factory=dict)

    def covers(self, shape: ChannelShape, levels: Mapping[str, frozenset[int]]) -> bool:
        known = self.levels.get(shape)
        return known is not None and all(found <= known[name] for name, found in levels.items())


@dataclass(eq=False)
class KeptPlan:
    """Valid while its shapes have these bases and what they read has these versions.

    considered: the shapes for which it was made; those whose part cannot be kept are not in it.
    """

    dataset: str
    bases: dict[ChannelShape, tuple[SubscriptionBase, object]]
    considered: Sequence[ChannelShape]
    schema: StructType
    view_of: Mapping[str, str]
    records: PlanInput
    sample: pa.Table
    frame: DataFrame | None
    names: SubscriptionNames
    delta: _DeltaPlan | None = None

    @property
    def shapes(self) -> list[ChannelShape]:
        return list(self.bases)

    def valid(self, states: States, versions: Mapping[ChannelShape, object]) -> bool:
        return all(
            shape in states and states[shape].base is base and versions[shape] == version
            for shape, (base, version) in self.bases.items()
        )


class KeptPlans:
    """By dataset, and by whether the records of a batch are many."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self.plans: dict[PlanKey, KeptPlan] = {}
        context = evaluation.spark.sparkContext
        memory = int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())  # type: ignore[union-attr]
        self._most_bytes = int(memory * _SHARE_OF_MEMORY) if str(context.master).startswith("local") else None
        self._beside = ThreadPoolExecutor(2, thread_name_prefix="delta")

    def find(
        self, dataset: str, states: States, schema: StructType, records: pa.Table, view_of: Mapping[str, str]
    ) -> KeptPlan | None:
        """The plan made before, while it is valid; a new one when more shapes qualify.

        Few records are best joined by one task; many by all cores, where no exchange is needed for that.
        """
        key = dataset, records.num_rows >= _SPREAD
        versions = {shape: shape.inputs_version for shape in states}
        plan = self.plans.get(key)
        if plan is not None and not plan.valid(states, versions):
            del self.plans[key]
            plan = None
        qualified = [shape for shape, state in states.items() if self._qualifies(shape, state)]
        if any(plan is None or shape not in plan.considered for shape in qualified):
            bases = {shape: (states[shape].base, versions[shape]) for shape in qualified}
            plan = self.plans[key] = self._make(dataset, bases, schema, records, view_of, key[1])
        return plan if plan and plan.bases else None

    def evaluate(self, plan: KeptPlan, records: pa.Table, states: States) -> pa.Table:
        """Rows (channel, key, row as JSON, position) for new records; the deltas are evaluated beside the bases."""
        plan.records.put(records)
        removed = frozenset[int]().union(*(states[shape].removed for shape in plan.bases))
        deltas = {shape: states[shape].delta for shape in plan.bases if states[shape].delta.num_rows}
        if plan.frame is None:
            return self._delta_rows(plan, deltas, removed)
        beside = self._beside.submit(self._delta_rows, plan, deltas, removed) if deltas else None
        try:
            found = plan.names.matches(self._evaluation.rows(plan.frame), removed)
        finally:
            if beside is not None:
                beside.exception()  # it reads the same records: the next batch must wait for it
        return found if beside is None else pa.concat_tables([found, beside.result()])

    def forget(self, plan: KeptPlan) -> None:
        """Make it again, or not."""
        self.plans = {key: other for key, other in self.plans.items() if other is not plan}

    def renewed(self, shape: ChannelShape, base: SubscriptionBase) -> dict[PlanKey, tuple[KeptPlan, KeptPlan]]:
        """Plans with another base of a shape, evaluated once, each with the one that it replaces."""
        found = {}
        for key, plan in list(self.plans.items()):
            if shape not in plan.bases:
                continue
            bases = {**plan.bases, shape: (base, plan.bases[shape][1])}
            made = self._make(key[0], bases, plan.schema, plan.sample, plan.view_of, key[1])
            if made.frame is not None:
                self._evaluation.rows(made.frame)  # broadcasts the bases
            found[key] = plan, made
        return found

    def replace(self, renewed: Mapping[PlanKey, tuple[KeptPlan, KeptPlan]]) -> None:
        """Use renewed plans where those that they replace are still in use."""
        for key, (before, made) in renewed.items():
            if self.plans.get(key) is before:
                self.plans[key] = made

    def _qualifies(self, shape: ChannelShape, state: ShapeState) -> bool:
        if not shape.validated.timeless or shape.unchanged_batches < _UNCHANGED_BATCHES or state.bulky:
            return False
        if self._most_bytes is None:
            return bool(state.base.rows.num_rows <= _MOST_ON_CLUSTER)
        return bool(state.base.rows.nbytes <= self._most_bytes)

    def _make(
        self,
        dataset: str,
        bases: Mapping[ChannelShape, tuple[SubscriptionBase, object]],
        schema: StructType,
        records: pa.Table,
        view_of: Mapping[str, str],
        many: bool,
    ) -> KeptPlan:
        evaluation = self._evaluation
        sample = records.slice(0, 1)
        with evaluation.lock:
            plan_input = PlanInput(evaluation.spark, schema, sample)
            frame = plan_input.spread if many else plan_input.single
            views = {**view_of, dataset: evaluation.view(f"plan {dataset}", frame)}
            queries, kept = [], {}
            for shape, (base, version) in bases.items():
                if base.frame is None:  # all its rows are in the delta
                    kept[shape] = base, version
                    continue
                query = evaluation.sql(shape, views, f"{base.view}_broadcast", shape.levels(base.rows))
                if self._reusable(shape, query):
                    queries.append(query)
                    kept[shape] = base, version
            union = evaluation.spark.sql(" UNION ALL ".join(queries)) if queries else None
        names = SubscriptionNames(shape.named(base.rows) for shape, (base, _) in kept.items())
        return KeptPlan(dataset, kept, list(bases), schema, view_of, plan_input, sample, union, names)

    def _delta_rows(self, plan: KeptPlan, deltas: Mapping[ChannelShape, pa.Table], removed: frozenset[int]) -> pa.Table:
        if plan.delta is None or not all(
            plan.delta.covers(shape, shape.levels(rows)) for shape, rows in deltas.items()
        ):
            plan.delta = self._make_delta(plan, deltas)
        delta, found = plan.delta, [NUMBERED.empty_table()]
        for shape, plan_input in delta.inputs.items():
            rows = deltas.get(shape)
            if rows is None:
                rows = delta.put[shape].slice(0, 0) if delta.put[shape].num_rows else delta.put[shape]
            if delta.put[shape] is not rows:
                plan_input.put(shape.spark_rows(rows))
                delta.put[shape] = rows
        if delta.frame is not None:
            found.append(self._evaluation.rows(delta.frame))
        if anew := [shape for shape in deltas if shape in delta.anew]:
            with self._evaluation.lock:
                views = self._record_views(plan)
                queries = [self._delta_sql(n, shape, deltas[shape], views) for n, shape in enumerate(anew)]
                frame = self._evaluation.spark.sql(" UNION ALL ".join(queries))
            found.append(self._evaluation.rows(frame))
        names = SubscriptionNames(shape.named(rows) for shape, rows in deltas.items())
        return names.matches(pa.concat_tables(found), removed)

    def _record_views(self, plan: KeptPlan) -> dict[str, str]:
        return {**plan.view_of, plan.dataset: self._evaluation.view(f"records {plan.dataset}", plan.records.single)}

    def _delta_sql(self, number: int, shape: ChannelShape, rows: pa.Table, views: Mapping[str, str]) -> str:
        frame = self._evaluation.spark.createDataFrame(shape.spark_rows(rows))
        view = self._evaluation.view(f"delta anew {number}", frame)
        return self._evaluation.sql(shape, views, view, shape.levels(rows))

    def _make_delta(self, plan: KeptPlan, deltas: Mapping[ChannelShape, pa.Table]) -> _DeltaPlan:
        """For the shapes that have a delta now or had one before."""
        evaluation, made, queries = self._evaluation, _DeltaPlan(), []
        before = plan.delta.put if plan.delta is not None else {}
        with evaluation.lock:
            views = self._record_views(plan)
            for shape, rows in {**before, **deltas}.items():
                if not rows.num_rows:
                    continue
                prefix, parameters = shape.validated.statement.prefix, shape.validated.spec.parameters
                schema = parse_ddl(subscription_ddl(prefix, parameters), "subscriptions")
                levels = made.levels[shape] = shape.levels(rows, plan.bases[shape][0].rows)
                plan_input = PlanInput(evaluation.spark, schema, shape.spark_rows(rows))
                view = evaluation.view("delta", plan_input.single.hint("shuffle_hash"))
                query = evaluation.sql(shape, views, view, levels)
                if self._reusable(shape, query):
                    frame = evaluation.spark.sql(query)
                    queries.append(frame)
                    made.inputs[shape], made.put[shape] = plan_input, rows
                else:
                    made.anew.add(shape)
            for frame in queries:
                made.frame = frame if made.frame is None else made.frame.unionAll(frame)
        return made

    def _reusable(self, shape: ChannelShape, query: str) -> bool:
        try:
            return is_reusable(self._evaluation.spark.sql(query))
        except Exception as error:  # it is evaluated by itself, and fails or not there
            self._evaluation.check_running(error)
            _log.warning("channel %s: its plan cannot be kept: %s", shape.name, error_line(error))
            return False
