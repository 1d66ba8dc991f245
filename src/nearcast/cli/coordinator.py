"""`nearcast coordinator …`: run one, or ask the one that leads."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_fields

app = typer.Typer()


@app.callback()
def root() -> None:
    """Keep topics within their bounds and sites within capacity."""


@app.command()
def run(
    url: UrlOption = DEFAULT_URL,
    site: Annotated[
        str, typer.Option(help="The site whose store keeps the state; the one at the URL by default.")
    ] = "",
    settings: Annotated[
        Path | None, typer.Option(help="A TOML file with settings; docs/control-plane.md lists them.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A latency model of `nearcast model train`: which topics may share a worker.")
    ] = None,
) -> None:
    """Coordinate until Ctrl-C. Several may run: one leads, another takes over when it is gone."""
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.config.validation import read_toml
    from nearcast.coordinator.coordinator import Coordinator
    from nearcast.coordinator.goals import GOALS
    from nearcast.coordinator.goals import goals as make_goals
    from nearcast.nats.connection import open_connection

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    chosen = read_toml(settings, CoordinatorSettings) if settings is not None else CoordinatorSettings()
    goals = GOALS
    if model is not None:
        from nearcast.cli.model import load_model

        goals = make_goals(load_model(model))

    async def coordinate() -> None:
        connection = await open_connection([url], name="coordinator", timeout=10)
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            one = Coordinator(connection, site or connection.server_name, chosen, goals)
            typer.echo(f"{one.name}: state in the store of {site or connection.server_name}.")
            typer.echo("Ready. Stop with Ctrl-C.")
            await one.run()
        except asyncio.CancelledError:
            typer.echo("Stopped.")
        finally:
            await connection.close()

    uvloop.run(coordinate())


@app.command()
def status(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Who leads, what it knows, and what its last pass found."""
    print_fields(call_leader(url, "coordinator", "status"), as_json)
