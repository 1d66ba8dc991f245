"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

from nearcast.cli.plan.balance import balance
from nearcast.cli.plan.stores import stores

__all__ = ["app"]

app = typer.Typer()
app.command()(stores)
app.command()(balance)
