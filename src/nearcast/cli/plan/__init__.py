"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan.

`show` and `apply` are the plan of the coordinator that leads, made by the same planners from what sites report.
"""

import typer

from nearcast.cli.plan.balance import balance
from nearcast.cli.plan.colocation import colocation
from nearcast.cli.plan.homes import homes
from nearcast.cli.plan.live import apply, show
from nearcast.cli.plan.partition import partition
from nearcast.cli.plan.stores import stores

__all__ = ["app"]

app = typer.Typer()
for command in (homes, colocation, partition, stores, balance, show, apply):
    app.command()(command)
