"""A SparkSession configured for short micro-batches, and a clear error when Java is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.cluster.local_file_system import use_posix_permissions
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = [
    "LOCAL_CHECKPOINTS",
    "JavaError",
    "local_cores",
    "query_session",
    "require_java",
    "spark_session",
    "stop_spark",
]

_MIN_JAVA = 17
_INSTALL_JAVA = "install a Java runtime, 17 or later (Debian: apt install openjdk-17-jre-headless), or set JAVA_HOME"

LOCAL_CHECKPOINTS = {
    # An almost empty micro-batch takes half the time with these. They are safe on a local disk only: a plain rename
    # instead of the file context, no .crc file beside each file, no second checksum.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
}

_SHORT_BATCHES = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.buffer.pageSize": "1m",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.autoBroadcastJoinThreshold": "64m",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Two inputs of one partition each are joined there. Those of kept plans are small, which Spark does not know: it
    # takes their size for 1 TB, too much to be broadcast.
    "spark.sql.defaultSizeInBytes": "1t",
    "spark.sql.maxSinglePartitionBytes": "8191p",
    "spark.cleaner.periodicGC.interval": "5min",
    "spark.python.authenticate.socketTimeout": "60s",  # a busy machine starts a worker slowly
}

_STREAMING_QUERIES = {
    "spark.sql.codegen.wholeStage": "false",
    # Of each query 100 batches would be kept, and listed after each batch.
    "spark.sql.streaming.minBatchesToRetain": "10",
}

# A second wall behind the whitelist of channel queries. Whatever the user sets, these hold.
_HARDENING = {
    "spark.sql.variable.substitute": "false",  # ${env:HOME} in a text would be the driver's environment
    "spark.sql.runSQLOnFiles": "false",  # FROM text.`/etc/passwd`
    "spark.sql.catalogImplementation": "in-memory",  # no metastore, no functions of its own
    "spark.sql.maxPlanStringLength": "100000",
}

# Hadoop starts a `chmod` process for files where `local_file_system` is not in use; vfork halves the cost.
_JAVA = "-Djdk.lang.Process.launchMechanism=VFORK"


class JavaError(NearcastError, OSError):
    """There is no Java that Spark can use."""


def require_java() -> int:
    """The version of the Java that Spark will use; JavaError when there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "there is no java on the path"
        raise JavaError(f"Spark needs Java, and {where}; {_INSTALL_JAVA}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    text = answer.stderr + answer.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    if found is None:
        raise JavaError(f"{java} -version says {text.strip()[:80]!r}; {_INSTALL_JAVA}")
    version = int(found[1])
    if version < _MIN_JAVA:
        raise JavaError(f"{java} is Java {version}; Spark needs {_MIN_JAVA} or later; {_INSTALL_JAVA}")
    return version


def spark_session(
    name: str,
    master: str = "local[*]",
    *,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of this process, set for short micro-batches; started when there is none.

    memory: of the one JVM of a local master.
    settings: Spark settings of the user, which override these, but for those that harden SQL.
    """
    local = master.startswith("local")
    if local and "SPARK_REMOTE" not in os.environ:
        require_java()
        # Workers need this environment, not the first python on the path.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # It prints a stack trace, as JSON, for each query that fails; Nearcast reports that in one line.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    cores = local_cores(master)
    logging = Path(__file__).with_name("log4j2.properties")
    options = _SHORT_BATCHES | {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging} {_JAVA}"}
    if cores is not None:  # a cluster has the user's own defaults
        options |= {"spark.sql.shuffle.partitions": str(cores), "spark.default.parallelism": str(cores)}
        options |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        options |= {"spark.driver.memory": memory}
    if local:
        # A task that runs out of memory would end its executor, which here is the driver. It fails, and its query.
        options |= LOCAL_CHECKPOINTS | {"spark.executor.killOnFatalError.depth": "0"}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (options | dict(settings or {}) | _HARDENING).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if local and "SPARK_REMOTE" not in os.environ:
        use_posix_permissions(session)
    return session


def query_session(spark: SparkSession) -> SparkSession:
    """A copy of a session for streaming queries: data sources that are registered later are not known there.

    Spark plans each micro-batch, whoever reads its records; it need not generate code for that.
    """
    session: SparkSession = type(spark)(spark.sparkContext, spark._jsparkSession.cloneSession())
    for key, value in _STREAMING_QUERIES.items():
        session.conf.set(key, value)
    return session


def stop_spark() -> None:
    """Stop this process's session, if there is one; else executors log that they were killed."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


def local_cores(master: str) -> int | None:
    """The cores a local master uses: `local` is 1, `local[N]` is N, `local[*]` all we may use; None for a cluster."""
    found = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master)
    if found is None:
        return None
    if found[1] is None:
        return 1
    return len(os.sched_getaffinity(0)) if found[1] == "*" else int(found[1])
