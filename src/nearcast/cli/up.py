"""`nearcast up`: all sites of a configuration on this machine."""

from __future__ import annotations

from pathlib import Path

from nearcast.cli.serve import ConfigOption, RunDirectoryOption, serve


def command(config: ConfigOption = Path("nearcast.toml"), run_directory: RunDirectoryOption = None) -> None:
    """Run all sites of a configuration on this machine. Example: nearcast up --config nearcast.toml"""
    serve(config, run_directory, None)
