"""`nearcast site …`: one site on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.serve import ConfigOption, RunDirectoryOption, serve

app = typer.Typer()


@app.callback()
def root() -> None:
    """Run one site on this machine."""


@app.command()
def run(
    name: Annotated[str, typer.Option(help="Which site of the configuration this machine is.")],
    config: ConfigOption = Path("nearcast.toml"),
    run_directory: RunDirectoryOption = None,
) -> None:
    """Start the site's broker, store and workers, keep them up, and stop them on Ctrl-C."""
    serve(config, run_directory, [name])
