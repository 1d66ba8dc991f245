"""`nearcast coordinator …`: run a coordinator, or show the state of the leader."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.options import MetricsOption
from nearcast.cli.output import JsonOption, print_fields

if TYPE_CHECKING:
    from prometheus_client.core import Metric

app = typer.Typer()


@app.command()
def run(
    url: UrlOption = DEFAULT_URL,
    site: Annotated[str, typer.Option(help="The site whose store has the state; the one at the URL by default.")] = "",
    settings: Annotated[
        Path | None, typer.Option(help="A TOML file with settings; docs/control-plane.md lists them.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A latency model of `nearcast model train`: which topics may share a worker.")
    ] = None,
    metrics: MetricsOption = "",
) -> None:
    """Run a coordinator until Ctrl-C. Several may run: one leads, and another takes over when it stops.

    Example: nearcast coordinator run --url nats://127.0.0.1:4222
    """
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.config.validation import read_toml
    from nearcast.coordinator.goals import GOALS, make_goals
    from nearcast.coordinator.leadership import Coordinator
    from nearcast.coordinator.metrics import coordinator_metrics
    from nearcast.metrics import LoopCollector, listen_near
    from nearcast.nats.connection import open_connection
    from nearcast.nats.identity.credentials import given_credentials

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    chosen = read_toml(settings, CoordinatorSettings) if settings is not None else CoordinatorSettings()
    goals = GOALS
    if model is not None:
        from nearcast.cli.model import load_model

        goals = make_goals(load_model(model))

    async def coordinate() -> None:
        connection = await open_connection([url], name="coordinator", timeout=10, credentials=given_credentials())
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        server = None
        try:
            coordinator = Coordinator(connection, site or connection.server_name, chosen, goals)

            async def collect() -> list[Metric]:
                return list(coordinator_metrics(coordinator))

            server = listen_near(LoopCollector(collect), metrics, "127.0.0.1:9464")
            typer.echo(f"{coordinator.name}: state in the store of {site or connection.server_name}.")
            typer.echo(f"Metrics: {server.url}")
            typer.echo("Ready. Stop with Ctrl-C.")
            await coordinator.run()
        except asyncio.CancelledError:
            typer.echo("Stopped.")
        finally:
            if server is not None:
                await server.stop_from_loop()
            await connection.close()

    uvloop.run(coordinate())


@app.command()
def status(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show the leader, the size of its registry, and the result of its last pass.

    Example: nearcast coordinator status
    """
    print_fields(call_leader(url, "coordinator", "status"), as_json)
