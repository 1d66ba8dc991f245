"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

from nearcast.cli.plan.colocation import colocation
from nearcast.cli.plan.homes import homes
from nearcast.cli.plan.partition import partition

__all__ = ["app"]

app = typer.Typer()
for command in (homes, colocation, partition):
    app.command()(command)
