"""A Spark session tuned for this machine, or for the cluster that the master setting names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.domain.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["OLDEST_JAVA", "spark_session", "stop_spark"]

OLDEST_JAVA = 17


def spark_session(
    name: str, master: str = "local[*]", *, memory: str = "1g", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, started when there is none. `settings` win over what is chosen here.

    With a `local` master, shuffle partitions follow the cores and `memory` bounds the one JVM; on a cluster
    Spark's own defaults and those of the cluster hold.
    """
    require_java()
    from pyspark.sql import SparkSession

    quiet = Path(__file__).with_name("log4j2.properties")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet}",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= {
            "spark.driver.memory": memory,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(local_cores(master)),
        }
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def stop_spark() -> None:
    """Stop this process's session, if there is one. Executors that are not told report how they were killed."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


def local_cores(master: str) -> int:
    """The cores a local master uses: local is 1, local[N] is N, local[*] all this process may use."""
    asked = re.match(r"local\[(\d+)", master)
    if asked:
        return int(asked[1])
    return len(os.sched_getaffinity(0)) if master.startswith("local[*") else 1


def require_java() -> None:
    """Raise, in one sentence, when there is no Java that Spark can run on."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    hint = f"install Java {OLDEST_JAVA} or later, for example openjdk-{OLDEST_JAVA}-jre-headless"
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME is {home} and holds no bin/java" if home else "there is no `java` on the PATH"
        raise NearcastError(f"Spark needs Java and {where}: {hint}.")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', told)
    if version is None or int(version[1]) < OLDEST_JAVA:
        found = version[0] if version else "one that does not tell its version"
        raise NearcastError(f"Spark needs Java {OLDEST_JAVA} or later and {java} is {found}: {hint}.")
