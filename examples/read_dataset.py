"""Read a dataset of the data cluster with Polars, DuckDB and plain Spark, while it is written.

    python examples/read_dataset.py warehouse/datasets/reports/data

The table is a Delta Lake table: each reader sees one version of it, complete, whatever is written meanwhile.
"""

# %% Which table
from __future__ import annotations

import sys
from typing import Any

import duckdb
import polars as pl
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession


# %% Polars: lazily, so that only the columns and days that are needed are read
def with_polars(folder: str) -> pl.DataFrame:
    """Records by day."""
    return pl.scan_delta(folder).group_by("_day").agg(pl.len().alias("records")).sort("_day").collect()


# %% DuckDB, through Arrow
def with_duckdb(folder: str) -> list[tuple[Any, ...]]:
    """The same in SQL."""
    with duckdb.connect() as connection:
        connection.register("records", DeltaTable(folder).to_pyarrow_dataset())
        return connection.sql("SELECT _day, count(*) FROM records GROUP BY _day ORDER BY _day").fetchall()


# %% Plain Spark, without the jars of Delta Lake: the files of one version
def with_spark(spark: SparkSession, folder: str, version: int | None = None) -> DataFrame:
    """All records of a version, of the newest without one. The day is in the names of the folders."""
    table = DeltaTable(folder, version=version)
    return spark.read.option("basePath", folder).parquet(*table.file_uris())


# %% All of them
def main(folder: str) -> None:
    print(with_polars(folder))
    print(with_duckdb(folder))
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    with_spark(spark, folder).groupBy("_day").count().orderBy("_day").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
