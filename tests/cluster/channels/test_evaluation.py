"""The limit on the time of an evaluation holds for all that a plan does, also before its first evaluation."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.channels.evaluation import Evaluation
from nearcast.cluster.channels.plan_output import PlanOutput, PlanRdd
from nearcast.cluster.channels.statement import NUMBERED
from nearcast.cluster.channels.time_limit import TimeLimitError
from nearcast.cluster.spark_errors import is_interruption

pytestmark = pytest.mark.xdist_group("spark")


def test_a_plan_that_broadcasts_for_too_long_is_stopped_but_not_interrupted(spark: SparkSession) -> None:
    endless = "SELECT max(a.id * b.id) AS most FROM range(1000000) a CROSS JOIN range(1000000) b"
    frame = spark.sql(
        "SELECT /*+ BROADCAST(s) */ r.id AS number, 'x' AS row, 0 AS position "
        f"FROM range(10) r JOIN ({endless}) s ON r.id < s.most"
    )
    output = PlanOutput([PlanRdd(frame, few=True)], NUMBERED, one_task=True)
    with pytest.raises(TimeLimitError, match="it took longer than 1 s") as stopped:
        Evaluation(spark, 1.0).output_rows(output)
    assert not is_interruption(stopped.value), "the batch is evaluated again without the plan"
