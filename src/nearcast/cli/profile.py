"""`nearcast profile …`: measure what a worker and a broker of this machine can take."""

from __future__ import annotations

import typer

app = typer.Typer()


@app.callback()
def root() -> None:
    """Measure what a worker and a broker can take."""
