"""`nearcast up`, and what `nearcast site run` and `nearcast dev` have of it: sites run until SIGINT or SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from nearcast.cli.companions import running_companions
from nearcast.cli.options import ConfigOption, RunDirectoryOption
from nearcast.config.deployment_file import read_configuration
from nearcast.site.security import is_loopback
from nearcast.site.site import Site, run_sites

__all__ = ["describe", "serve", "up"]


def up(
    config: ConfigOption = Path("nearcast.toml"),
    run_directory: RunDirectoryOption = None,
    console: Annotated[bool, typer.Option("--console", help="Also run a coordinator and the console.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the console; 0 for any free port.")] = 8600,
) -> None:
    """Run all sites of a configuration on this machine. Example: nearcast up --config nearcast.toml --console"""
    serve(config, run_directory, None, port if console else None)


def serve(config: Path, run_directory: Path | None, names: list[str] | None, console_port: int | None = None) -> None:
    """Run sites of a configuration until SIGINT or SIGTERM. console_port: with a coordinator and the console, there."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    deployment = read_configuration(config)
    for name in names or ():
        deployment.site(name)
    folder = run_directory or config.parent / ".nearcast"
    search_path = [str(config.parent.resolve())]

    async def run() -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        async with run_sites(deployment, folder, search_path, names) as sites:
            for site in sites.values():
                typer.echo(describe(site))
            async with contextlib.AsyncExitStack() as stack:
                if console_port is not None:
                    started = running_companions(deployment, folder, console_port)
                    typer.echo(await stack.enter_async_context(started))
                typer.echo("Ready. Stop with Ctrl-C.")
                await stopped.wait()
        typer.echo("Stopped.")

    uvloop.run(run())


def describe(site: Site) -> str:
    """One line about a running site."""
    spec = site.spec
    parts = [f"{spec.name:<12} {spec.kind:<5} clients {spec.url}"]
    if spec.mqtt_port is not None:
        parts.append(f"MQTT {spec.host}:{spec.mqtt_port}")
    if spec.store is not None:
        parts.append(f"store {spec.store.directory}")
    parts.append(f"metrics http://{spec.metrics_host}:{spec.metrics_port}/metrics")
    managed = [topic.name for topic in site.deployment.managed_at(spec.name)]
    if managed:
        parts.append(f"{len(site.workers)} worker(s) for {', '.join(managed)}")
    if site.security is not None:
        parts.append("credentials" + (" and TLS" if site.security.tls is not None else ""))
    if not is_loopback(spec.host) and (site.security is None or site.security.tls is None):
        may = "do anything" if site.security is None else "read everything, credentials that are sent too"
        parts.append(f"INSECURE: anybody in this network may {may}")
    return "  ".join(parts)
