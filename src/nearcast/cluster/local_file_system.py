"""Hadoop's local file system without a process for each file.

Without its native library, which PySpark does not ship, Hadoop starts a `chmod` process for every file that it creates:
twice in each micro-batch, for the offsets and for the commit. Java sets permissions without one. Spark's own compiler
makes the class that does so, in the driver.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["use_posix_permissions"]

_log = logging.getLogger(__name__)
_PLAIN = "org.apache.hadoop.fs.RawLocalFileSystem"
_NAME = "nearcast.PosixLocalFileSystem"
_SOURCE = """
package nearcast;

import java.net.URI;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class PosixLocalFileSystem extends RawLocalFileSystem {
  public void setPermission(Path path, FsPermission mode) throws java.io.IOException {
    if (mode.getStickyBit()) {
      super.setPermission(path, mode);
      return;
    }
    String text = mode.getUserAction().SYMBOL + mode.getGroupAction().SYMBOL + mode.getOtherAction().SYMBOL;
    Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(text));
  }

  public void install(Configuration settings) throws Exception {
    URI root = URI.create("file:///");
    initialize(root, settings);
    java.lang.reflect.Method add = FileSystem.class.getDeclaredMethod(
        "addFileSystemForTesting", new Class[] {URI.class, Configuration.class, FileSystem.class});
    add.setAccessible(true);
    add.invoke(null, new Object[] {root, settings, this});
  }
}
"""


def use_posix_permissions(spark: SparkSession) -> bool:
    """Let the driver's Hadoop set permissions of local files itself; False when it has another local file system."""
    jvm: Any = spark._jvm
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    try:
        present = jvm.org.apache.hadoop.fs.Path("file:///").getFileSystem(settings).getClass().getName()
        if present != _PLAIN:
            return bool(present == _NAME)
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE)
        compiler.getClassLoader().loadClass(_NAME).newInstance().install(settings)
    except Exception as error:  # another version of Hadoop: everything works without, a little slower
        _log.info("each local file is created with a process: %s", error_line(error))
        return False
    return True
