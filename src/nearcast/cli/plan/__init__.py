"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

from nearcast.cli.plan.homes import homes

__all__ = ["app"]

app = typer.Typer()
app.callback()(lambda: None)  # keeps `nearcast plan homes` a command of its own while it is the only one
app.command()(homes)
