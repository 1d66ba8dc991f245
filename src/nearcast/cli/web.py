"""`nearcast web`: the console and REST."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption
from nearcast.errors import InputError


def command(
    url: UrlOption = DEFAULT_URL,
    host: Annotated[
        str, typer.Option(help="Where it listens; beyond loopback credentials and a certificate are needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where a browser finds it; 0 for any free port.")] = 8600,
    certificate: Annotated[
        Path | None, typer.Option(help="For TLS: a certificate for this host, such as auth/tls/SITE.pem.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's private key, such as auth/tls/SITE.key.")] = None,
    metrics: Annotated[
        str,
        typer.Option(help="HOST:PORT where Prometheus finds /metrics without a login; a port of loopback by default."),
    ] = "",
    no_login: Annotated[
        bool,
        typer.Option(
            "--no-login",
            help="On loopback, with credentials: whoever reaches it acts as their user, without a login.",
        ),
    ] = False,
    link: Annotated[
        bool,
        typer.Option(
            "--link",
            help="On loopback, with credentials: print a link that logs in as their user, until the console ends.",
        ),
    ] = False,
    secret: Annotated[str, typer.Option(envvar="NEARCAST_CONSOLE_LINK", hidden=True, help="Of the link.")] = "",
    inherited: Annotated[
        int | None,
        typer.Option(
            "--socket", min=3, hidden=True, help="A listening socket of the parent process, by its descriptor."
        ),
    ] = None,
) -> None:
    """Serve the console and REST until Ctrl-C. With credentials (NEARCAST_CREDS) there is a login.

    Example: nearcast web, then open http://127.0.0.1:8600
    """
    import asyncio
    import secrets
    import socket

    from nearcast.web.access import ServerTls
    from nearcast.web.server import Listening, ListenOptions, serve

    if (certificate is None) != (key is None):
        raise InputError("--certificate and --key go together")
    tls = ServerTls(certificate, key) if certificate is not None and key is not None else None
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")

    def ready(listening: Listening) -> None:
        typer.echo(f"Console: {listening.address}  REST: {listening.address}/api/v1/openapi.json")
        if listening.metrics:
            typer.echo(f"Metrics: {listening.metrics}")
        if listening.link:
            typer.echo(f"Log in with this link: {listening.link}")
        elif listening.login:
            typer.echo("Log in with the credentials of an operator or a reader.")
        typer.echo("Ready. Stop with Ctrl-C.")

    opened = (secret or secrets.token_urlsafe(24)) if link else ""
    listener = socket.socket(fileno=inherited) if inherited is not None else None
    try:
        asyncio.run(serve(url, ListenOptions(host, port, listener, tls, not no_login, metrics, opened), ready))
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        typer.echo("Stopped.")
