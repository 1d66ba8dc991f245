"""`nearcast plan …`: one module per planner, each one command that reads tables and writes a plan."""

import typer

__all__ = ["app"]

app = typer.Typer()
