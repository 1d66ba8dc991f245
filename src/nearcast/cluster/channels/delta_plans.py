"""The plans of deltas: subscriptions that came after the base of their shape was made.

Their rows are replaced as those of the records are, so a change needs no new plan. The input of a shape is made once
and used by all plans that come after: making one takes about as long as planning a query.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from nearcast.cluster.channels.channel_shape import ChannelShape
from nearcast.cluster.channels.kept_plan import DeltaInput, DeltaPlan, KeptPlan
from nearcast.cluster.channels.plan_output import PlanOutput, PlanRdd
from nearcast.cluster.channels.reusable_plan import is_reusable
from nearcast.cluster.channels.statement import NUMBERED, levels_in, result_sql
from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from nearcast.cluster.channels.evaluation import Evaluation

__all__ = ["DeltaPlans", "plan_union"]

_log = logging.getLogger(__name__)
Deltas = Mapping[ChannelShape, pa.Table]


class DeltaPlans:
    """Makes them; holds the inputs."""

    def __init__(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        self._inputs: dict[ChannelShape, DeltaInput] = {}
        self._numbers = itertools.count()

    def current(self, plan: KeptPlan, deltas: Deltas) -> DeltaPlan:
        """The plan of the deltas with their present rows; made again for a shape or a level that it does not know."""
        delta = plan.delta
        if delta is None or not all(delta.covers(shape, rows) for shape, rows in deltas.items()):
            delta = self._make(plan, deltas)
        for shape, delta_input in delta.inputs.items():
            delta_input.put(deltas.get(shape))
        tables = list(deltas.values())
        if len(tables) != len(delta.named) or any(a is not b for a, b in zip(tables, delta.named, strict=True)):
            named = [shape.named(rows).combine_chunks() for shape, rows in deltas.items()]
            delta.names, delta.named = plan.names.beside(named), tables
        return delta

    def replanned_rows(self, plan: KeptPlan, delta: DeltaPlan, deltas: Deltas) -> pa.Table:
        """Rows (number, row as JSON, position) of the deltas whose plans cannot be kept."""
        if not (replanned := [shape for shape in deltas if shape in delta.replanned]):
            return NUMBERED.empty_table()
        with self._evaluation.lock:
            views = self._record_views(plan)
            queries = [self._replanned_sql(n, shape, deltas[shape], views) for n, shape in enumerate(replanned)]
            frame = self._evaluation.spark.sql(" UNION ALL ".join(queries))
        return self._evaluation.rows(frame)

    def drop(self, shape: ChannelShape) -> None:
        """Forget the input of a shape."""
        self._inputs.pop(shape, None)

    def _make(self, plan: KeptPlan, deltas: Deltas) -> DeltaPlan:
        """For the shapes that have a delta now or had one before."""
        evaluation, made, queries = self._evaluation, DeltaPlan(), {}
        before = plan.delta.inputs if plan.delta is not None else {}
        with evaluation.lock:
            views = self._record_views(plan)
            for shape in {**before, **deltas}:
                rows = deltas.get(shape)
                if rows is None and not before[shape].rows.num_rows:
                    continue
                if shape not in self._inputs:
                    self._inputs[shape] = DeltaInput(evaluation, shape, deltas[shape], next(self._numbers))
                delta_input = self._inputs[shape]
                of = [plan.bases[shape][0].rows, delta_input.rows, *([] if rows is None else [rows])]
                levels = made.levels[shape] = levels_in(shape.validated, *of)
                queries[shape] = result_sql(shape.validated, views, delta_input.view, levels)
            frame, reusable = plan_union(evaluation, queries)
        parts = [
            *(plan.output.parts if plan.output else ()),
            *([PlanRdd(frame, few=not plan.many)] if frame is not None else ()),
        ]
        made.output = PlanOutput(parts, NUMBERED, one_task=not plan.many) if parts else None
        made.inputs = {shape: self._inputs[shape] for shape in reusable}
        made.replanned.update(shape for shape in queries if shape not in made.inputs)
        return made

    def _record_views(self, plan: KeptPlan) -> dict[str, str]:
        return {**plan.view_of, plan.dataset: self._evaluation.view(f"records {plan.dataset}", plan.records.single)}

    def _replanned_sql(self, number: int, shape: ChannelShape, rows: pa.Table, views: Mapping[str, str]) -> str:
        frame = self._evaluation.spark.createDataFrame(shape.spark_rows(rows))
        view = self._evaluation.view(f"replanned delta {number}", frame)
        return result_sql(shape.validated, views, view, levels_in(shape.validated, rows))


def plan_union(
    evaluation: Evaluation, queries: Mapping[ChannelShape, str]
) -> tuple[DataFrame | None, list[ChannelShape]]:
    """One plan of all queries whose plans can be kept, and the shapes whose they are. Planning is what costs: each is
    planned by itself only when one of them cannot be kept."""
    shapes = list(queries)
    if shapes and (frame := _reusable(evaluation, shapes, queries)) is None:
        shapes = [shape for shape in shapes if _reusable(evaluation, [shape], queries) is not None]
        frame = _reusable(evaluation, shapes, queries) if shapes else None
    return (frame, shapes) if shapes and frame is not None else (None, [])


def _reusable(
    evaluation: Evaluation, shapes: Sequence[ChannelShape], queries: Mapping[ChannelShape, str]
) -> DataFrame | None:
    """The plan of some shapes, if it can be kept."""
    try:
        frame = evaluation.spark.sql(" UNION ALL ".join(queries[shape] for shape in shapes))
        return frame if is_reusable(frame) else None
    except Exception as error:  # it is evaluated by itself, and fails or not there
        evaluation.check_running(error)
        if len(shapes) == 1:
            _log.warning("channel %s: its plan cannot be kept: %s", shapes[0].name, error_line(error))
        return None
