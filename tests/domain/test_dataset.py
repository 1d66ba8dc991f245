"""Datasets as they are written in the catalog and in requests."""

from __future__ import annotations

import time

import pytest

from nearcast.cluster.datasets.schema import dataset_ddl
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("id STRING" + " " * 900_000, "its schema has 900009 characters; 20000 are allowed"),
        ("a " + "ARRAY<" * 300 + "INT" + ">" * 300, "its schema is nested deeper than 20 levels"),
        ("a " + "STRUCT<a: " * 300 + "INT" + ">" * 300, "its schema is nested deeper than 20 levels"),
    ],
)
def test_a_schema_that_spark_would_not_finish_is_refused(schema: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        check_dataset(DatasetSpec("reports", schema, "fed.reports"))
    check_dataset(DatasetSpec("reports", "id STRING, a ARRAY<STRUCT<b: MAP<STRING, DECIMAL(9, 2)>>>", "fed.reports"))


def test_spaces_in_a_schema_take_no_time() -> None:
    """A second for 9,000 of them, and hours for a megabyte: meanwhile nothing else ran in the driver."""
    spaces = " " * 19_000
    began = time.process_time()
    assert dataset_ddl(DatasetSpec("d", f"id STRING{spaces}NOT  NULL, b INT{spaces}")) == f"id STRING, b INT{spaces}"
    assert time.process_time() - began < 1
