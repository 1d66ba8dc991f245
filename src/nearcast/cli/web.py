"""`nearcast web`: the console and REST."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption


def command(
    url: UrlOption = DEFAULT_URL,
    host: Annotated[str, typer.Option(help="A loopback address: there is no login yet.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where a browser finds it; 0 for any free port.")] = 8600,
    inherited: Annotated[
        int | None,
        typer.Option(
            "--socket", min=3, hidden=True, help="A listening socket of the parent process, by its descriptor."
        ),
    ] = None,
) -> None:
    """Serve the console and REST until Ctrl-C. Example: nearcast web, then open http://127.0.0.1:8600"""
    import asyncio
    import socket

    from nearcast.web.server import serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")

    def ready(address: str) -> None:
        typer.echo(f"Console: {address}  REST: {address}/api/v1/openapi.json")
        typer.echo("Ready. Stop with Ctrl-C.")

    listener = socket.socket(fileno=inherited) if inherited is not None else None
    try:
        asyncio.run(serve(url, host, port, ready, listener))
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        typer.echo("Stopped.")
