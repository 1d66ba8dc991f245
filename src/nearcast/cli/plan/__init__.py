"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

from nearcast.cli.plan.live import apply, show
from nearcast.cli.plan.homes import homes
from nearcast.cli.plan.partition import partition

__all__ = ["app"]

app = typer.Typer()
app.command()(partition)
app.command()(show)
app.command()(apply)
for command in (homes, partition):
    app.command()(command)
