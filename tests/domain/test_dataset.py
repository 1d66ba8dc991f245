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
        ("`" + ">" * 30 + "` INT, a " + "ARRAY<" * 30, "its schema is nested deeper than 20 levels"),
        ("a " + "STRUCT<`>>`: " * 30 + "INT", "its schema is nested deeper than 20 levels"),
        ("a INT COMMENT '" + ">" * 30 + "', b " + "ARRAY<" * 30, "its schema is nested deeper than 20 levels"),
        ("a INT /*" + ">" * 30 + "*/, b " + "ARRAY<" * 30, "its schema has '/'; allowed in quoted names"),
        ("a INT -- >>\n, b " + "ARRAY<" * 30, "its schema has '-'; allowed in quoted names"),
        ("a INT COMMENT R'\\', b " + "ARRAY<" * 30 + "'", 'its schema has "\'"; allowed in quoted'),
        (">" * 30 + "a " + "ARRAY<" * 30, "its schema is nested deeper than 20 levels"),
    ],
)
def test_a_schema_that_spark_would_not_finish_is_refused(schema: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        check_dataset(DatasetSpec("reports", schema, "fed.reports"))
    check_dataset(DatasetSpec("reports", "id STRING, a ARRAY<STRUCT<b: MAP<STRING, DECIMAL(9, 2)>>>", "fed.reports"))
    check_dataset(DatasetSpec("reports", "`a-b` INT COMMENT 'a > b; 5 %' NOT NULL, `<<` INT", "fed.reports"))


def test_spaces_in_a_schema_take_no_time() -> None:
    """A second for 9,000 of them, and hours for a megabyte: meanwhile nothing else ran in the driver."""
    spaces = " " * 19_000
    began = time.process_time()
    assert dataset_ddl(DatasetSpec("d", f"id STRING{spaces}NOT  NULL, b INT{spaces}")) == f"id STRING, b INT{spaces}"
    assert time.process_time() - began < 1
