"""The connection through which a thread calls Java.

Java writes a long answer in pieces of 8 KB. Between two of them the kernel waits for an acknowledgement, which the
other side delays: 40 ms for every answer above 8 KB, unless Java's side of the connection is told not to wait.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from nearcast.cluster.spark_errors import error_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["send_answers_at_once"]

_log = logging.getLogger(__name__)
_thread = threading.local()


def send_answers_at_once(spark: SparkSession) -> None:
    """Let Java send its answers to this thread without delay. The first call of a thread does it.

    It is for the threads in which Spark calls micro-batches. Py4J may not know the connection of another thread; then
    its long answers are delayed.
    """
    gateway: Any = spark.sparkContext._gateway
    known = getattr(_thread, "connection", None)
    if known is not None and known() is not None and known() is gateway._gateway_client.get_thread_connection():
        return
    try:
        socket = gateway.java_gateway_server.getCallbackClient().getPerThreadConnection().getSocket()
        socket.setTcpNoDelay(True)
    except Exception as error:  # not known, or another version of Py4J: everything works without, a little slower
        _log.debug("long answers of Java are delayed: %s", error_line(error))
    connection = gateway._gateway_client.get_thread_connection()
    _thread.connection = None if connection is None else weakref.ref(connection)
