"""`nearcast up`: all sites of a configuration on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.serve import ConfigOption, RunDirectoryOption, serve


def command(
    config: ConfigOption = Path("nearcast.toml"),
    run_directory: RunDirectoryOption = None,
    console: Annotated[bool, typer.Option("--console", help="Also run a coordinator and the console.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the console; 0 for any free port.")] = 8600,
) -> None:
    """Run all sites of a configuration on this machine. Example: nearcast up --config nearcast.toml --console"""
    serve(config, run_directory, None, port if console else None)
