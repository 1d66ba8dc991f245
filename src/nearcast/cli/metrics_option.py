"""The option that says where a process serves its metrics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from nearcast.metrics import MetricsServer

__all__ = ["MetricsOption", "serving_metrics"]

MetricsOption = Annotated[
    str,
    typer.Option(help="HOST:PORT where Prometheus finds /metrics; a port of loopback that is printed by default."),
]


@contextlib.contextmanager
def serving_metrics(collector: Collector, address: str, default: str) -> Iterator[MetricsServer]:
    """Serve a collector that needs no event loop."""
    from nearcast.metrics import listen_near

    server = listen_near(collector, address, default)
    try:
        yield server
    finally:
        server.stop()
