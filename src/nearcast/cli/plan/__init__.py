"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

from nearcast.cli.plan.live import apply, show
from nearcast.cli.plan.balance import balance
from nearcast.cli.plan.colocation import colocation
from nearcast.cli.plan.homes import homes
from nearcast.cli.plan.partition import partition
from nearcast.cli.plan.stores import stores

__all__ = ["app"]

app = typer.Typer()
app.command()(partition)
app.command()(show)
app.command()(apply)
for command in (homes, partition):
for command in (homes, colocation, partition, stores, balance):
    app.command()(command)
