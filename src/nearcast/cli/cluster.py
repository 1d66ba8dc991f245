"""`nearcast cluster …`: run the data cluster."""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.table import Table

from nearcast.cli.options import ConfigOption, MetricsOption
from nearcast.cli.output import plain_console

if TYPE_CHECKING:
    from nearcast.cluster.driver_progress import DriverProgress

app = typer.Typer()
_log = logging.getLogger("nearcast.cluster")
_REPORT_SECONDS = 10.0


@app.command()
def run(
    config: ConfigOption = Path("nearcast.toml"),
    metrics: MetricsOption = "",
    standby: Annotated[bool, typer.Option(help="Wait while another driver runs, and take over when it ends.")] = False,
) -> None:
    """Keep datasets and execute channels until Ctrl-C. Example: nearcast cluster run --config nearcast.toml"""
    from nearcast.cli.deployment_credentials import use_credentials
    from nearcast.cluster.driver import Driver
    from nearcast.cluster.driver_lease import DriverLease
    from nearcast.cluster.driver_metrics import DriverMetrics
    from nearcast.cluster.spark_session import spark_session
    from nearcast.config.deployment_file import read_configuration
    from nearcast.metrics import listen_near
    from nearcast.tracing import enable_by_environment

    deployment = use_credentials(read_configuration(config), "cluster")
    spec = deployment.data_cluster()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    enable_by_environment("nearcast-cluster")
    sys.setswitchinterval(0.001)  # a batch passes through several threads, each switch may take this long
    lease = DriverLease(deployment.cloud())  # the lease of a killed driver expires while Spark starts
    spark = spark_session("nearcast cluster", master=spec.master, settings=spec.spark)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):  # after Spark has started: it installs its own handlers
        signal.signal(number, lambda *_: stop.set())
    try:
        if standby:
            typer.echo("On standby.")
            if not lease.wait(stop):
                return
        with Driver(spark, deployment, lease) as driver, contextlib.ExitStack() as stack:
            server = listen_near(DriverMetrics(driver.progress), metrics, "127.0.0.1:9474")
            stack.callback(server.stop)
            typer.echo(f"Metrics: {server.url}")
            _log.info("the data cluster is running")
            typer.echo("Ready. Stop with Ctrl-C.")
            threading.Thread(target=_report, args=(driver.progress, stop), daemon=True).start()
            gc.freeze()  # modules and what they hold stay: a full collection of them stops a batch for 80 ms
            driver.run(stop)
            _log.info("stopping")
    finally:
        spark.stop()


def _report(progress: DriverProgress, stop: threading.Event) -> None:
    """A live table on a terminal; else a log line per producer every ten seconds."""
    if sys.stdout.isatty():
        with Live(console=plain_console(), refresh_per_second=2) as live:
            while not stop.wait(0.5):
                live.update(_table(progress))
        return
    while not stop.wait(_REPORT_SECONDS):
        for name, count in progress.snapshot().items():
            _log.info(
                "%s: %d rows in, %d refused, %d results out, lag %d, last batch %.0f ms%s",
                name, count.rows, count.refused, count.results, count.lag, count.seconds * 1000,
                f" ({count.problem})" if count.problem else "",
            )  # fmt: skip


def _table(progress: DriverProgress) -> Table:
    table = Table("producer", "rows in", "refused", "results out", "lag", "last batch, ms", "")
    for name, count in progress.snapshot().items():
        numbers = (count.rows, count.refused, count.results, count.lag, round(count.seconds * 1000))
        table.add_row(name, *(f"{number:,}" for number in numbers), count.problem)
    return table
