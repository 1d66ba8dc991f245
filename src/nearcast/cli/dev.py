"""`nearcast dev`: sites on this machine, processors reloaded when a file is saved, messages printed as they flow."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
import uvloop

from nearcast.cli.options import ConfigOption, RunDirectoryOption
from nearcast.cli.serve import describe
from nearcast.config.deployment_file import read_configuration
from nearcast.errors import NearcastError
from nearcast.message import Message
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import given_credentials
from nearcast.nats.tasks import cancel_and_wait
from nearcast.site.site import run_sites

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nearcast.domain.deployment import Deployment
    from nearcast.nats.connection import Connection, Handler
    from nearcast.site.site import Site

_LOOK_SECONDS = 0.3
_CHECK = "import sys; sys.path[:0] = [sys.argv[1]]; from nearcast.processors import load_processors; " + (
    "load_processors(sys.argv[2:])"
)


def command(config: ConfigOption = Path("nearcast.toml"), run_directory: RunDirectoryOption = None) -> None:
    """Run all sites here and print what flows; saving a .py file reloads the processors. Example: nearcast dev"""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    deployment = read_configuration(config)
    uvloop.run(_develop(deployment, config.parent.resolve(), run_directory or config.parent / ".nearcast"))


async def _develop(deployment: Deployment, folder: Path, run_directory: Path) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    seen = _times(folder)
    async with run_sites(deployment, run_directory, [str(folder)]) as sites:
        connection = await open_connection(
            [deployment.sites[0].url], name="nearcast-dev", credentials=given_credentials()
        )
        try:
            await _print_messages(connection)
            for site in sites.values():
                typer.echo(describe(site))
            typer.echo("Ready. Save a .py file to reload processors. Stop with Ctrl-C.")
            watching = asyncio.create_task(_watch(deployment, folder, sites, seen), name="watch files")
            await stopped.wait()
            await cancel_and_wait(watching)
        finally:
            await connection.close()
    typer.echo("Stopped.")


async def _print_messages(connection: Connection) -> None:
    def printer(kind: str) -> Handler:
        def show(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
            message: Message = Message(subjects.topic_of(subject), payload, headers)
            why = f"  {message.reason}" if message.reason else ""
            typer.echo(f"{kind:<13} {message.topic}  {payload.decode(errors='backslashreplace')}{why}")

        return show

    for kind, subject in (
        ("publication", subjects.publications(">")),
        ("notification", subjects.notifications(">")),
        ("dead letter", subjects.dead_letters(">")),
    ):
        await connection.subscribe_raw(subject, printer(kind))
    await connection.flush()


async def _watch(deployment: Deployment, folder: Path, sites: Mapping[str, Site], seen: dict[Path, int]) -> None:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        found = await asyncio.to_thread(_times, folder)
        changed = sorted(path.name for path in found.keys() | seen.keys() if found.get(path) != seen.get(path))
        seen = found
        if not changed or not deployment.modules:
            continue
        problem = await _import_problem(deployment, folder)
        if problem:
            typer.echo(f"Not reloaded, the processors run on as they were: {problem}")
            continue
        try:
            for site in sites.values():
                if site.agent is not None:
                    await site.agent.workers.restart()
        except NearcastError as error:
            typer.echo(f"Not reloaded: {error}")
        else:
            typer.echo(f"Reloaded: {', '.join(changed)}")


async def _import_problem(deployment: Deployment, folder: Path) -> str:
    """Why the modules cannot be loaded, as the last line of the error; empty when they can."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _CHECK, str(folder), *deployment.modules,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await process.communicate()
    lines = errors.decode(errors="replace").strip().splitlines()
    return "" if process.returncode == 0 else lines[-1] if lines else f"exit code {process.returncode}"


def _times(folder: Path) -> dict[Path, int]:
    """When each Python file was last saved."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("**/*.py") if path.is_file()}
