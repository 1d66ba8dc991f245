"""The limit on the time of an evaluation holds whenever its jobs begin, and for all that a kept plan does."""

from __future__ import annotations

import time

import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.channels.evaluation import Evaluation
from nearcast.cluster.channels.plan_output import PlanOutput, PlanRdd
from nearcast.cluster.channels.statement import NUMBERED
from nearcast.cluster.channels.time_limit import TimeLimit, TimeLimitError
from nearcast.cluster.spark_errors import is_interruption

pytestmark = pytest.mark.xdist_group("spark")
LONG = "SELECT max(a.id * b.id) AS most FROM range(10000000) a CROSS JOIN range(10000) b"  # minutes


def test_a_job_that_begins_after_the_limit_is_stopped(spark: SparkSession) -> None:
    def planned_and_run() -> None:
        with TimeLimit(spark, 0.1):
            time.sleep(0.5)  # as Spark may plan
            spark.sql(LONG).collect()

    with pytest.raises(TimeLimitError, match=r"it took longer than 0\.1 s"):
        planned_and_run()


def test_a_kept_plan_that_broadcasts_for_too_long_is_stopped_and_not_taken_for_interrupted(spark: SparkSession) -> None:
    joined = f"range(10) r JOIN ({LONG}) s ON r.id < s.most"
    frame = spark.sql(f"SELECT /*+ BROADCAST(s) */ r.id AS number, 'x' AS row, 0 AS position FROM {joined}")
    output = PlanOutput([PlanRdd(frame, few=True)], NUMBERED, one_task=True)
    with pytest.raises(TimeLimitError) as stopped:
        Evaluation(spark, 1.0).output_rows(output)
    assert not is_interruption(stopped.value), "the batch is evaluated again without the plan"
