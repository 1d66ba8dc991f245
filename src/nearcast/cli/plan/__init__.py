"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

from nearcast.cli.plan.partition import partition

__all__ = ["app"]

app = typer.Typer()
app.command()(partition)
