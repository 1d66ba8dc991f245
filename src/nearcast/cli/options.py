"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["ConfigOption", "MetricsOption", "RunDirectoryOption"]

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="The configuration file.")]
RunDirectoryOption = Annotated[
    Path | None,
    typer.Option(help="Where logs, spools and server files go; .nearcast beside the configuration by default."),
]
MetricsOption = Annotated[
    str,
    typer.Option(help="HOST:PORT where Prometheus finds /metrics; a port of loopback that is printed by default."),
]
