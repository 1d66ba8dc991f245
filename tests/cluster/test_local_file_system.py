"""The driver's Hadoop sets permissions of local files itself."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.local_file_system import use_posix_permissions

pytestmark = pytest.mark.xdist_group("spark")


def test_files_have_the_permissions_that_hadoop_asks_for(spark: SparkSession, tmp_path: Path) -> None:
    assert use_posix_permissions(spark), "the session has it"
    jvm: Any = spark._jvm
    files = jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}").getFileSystem(
        spark.sparkContext._jsc.hadoopConfiguration()
    )
    assert files.getClass().getName() == "nearcast.PosixLocalFileSystem"
    path = jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}/folder/file")
    files.create(path, True).close()
    assert stat.S_IMODE((tmp_path / "folder" / "file").stat().st_mode) == 0o644
    for mode in ("640", "400", "777", "000"):
        files.setPermission(path, jvm.org.apache.hadoop.fs.permission.FsPermission(mode))
        assert stat.S_IMODE((tmp_path / "folder" / "file").stat().st_mode) == int(mode, 8)


def test_spark_writes_through_it(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "numbers"))
    assert spark.read.parquet(str(tmp_path / "numbers")).count() == 3
