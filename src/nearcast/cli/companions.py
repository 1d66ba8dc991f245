"""A coordinator and the console beside the sites of `nearcast up`, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.auth.auth_folder import AuthFolder
from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.identity.credentials import VARIABLE, read_credentials
from nearcast.nats.tasks import retry
from nearcast.site.supervisor import die_with_parent

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment

__all__ = ["running_companions"]

_START_LIMIT, _STOP_LIMIT = 60.0, 20.0
_NEARCAST = (sys.executable, "-c", "from nearcast.cli import main; main()")


@contextlib.asynccontextmanager
async def running_companions(deployment: Deployment, folder: Path, port: int) -> AsyncIterator[str]:
    """Yields the line in which the console says where it is, once a coordinator leads. folder: of their logs."""
    stores = [site for site in deployment.sites if site.store is not None]
    if not stores:
        raise InputError("--console needs a site with a store: the coordinator keeps its state there")
    url = next((site.url for site in stores if site.kind == "cloud"), stores[0].url)
    async with (
        _process(deployment, folder, "coordinator", "coordinator", "run", "--url", url),
        _process(deployment, folder, "console", "web", "--url", url, "--port", str(port)) as line,
    ):
        await _until_led(deployment, folder, url)
        yield line


@contextlib.asynccontextmanager
async def _process(deployment: Deployment, folder: Path, user: str, *arguments: str) -> AsyncIterator[str]:
    """A command of ours with the credentials of a user; its first line. Its log is a file named after the user."""
    environment, file = dict(os.environ), folder / f"{user}.log"
    if (credentials := _credentials_file(deployment, user)) is not None:
        environment[VARIABLE] = str(credentials)
    with file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *_NEARCAST, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=log,
            env=environment, preexec_fn=partial(die_with_parent, signal.SIGINT),
            start_new_session=True,  # Ctrl-C is for `up`, which ends them
        )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_LIMIT):
            line = (await process.stdout.readline()).decode().strip()
        if not line:
            await process.wait()
            last = file.read_text(errors="replace").strip().splitlines()
            raise NearcastError(f"the {user} did not start: {last[-1] if last else 'it said nothing'}")
        yield line
    except TimeoutError:
        raise NearcastError(f"the {user} did not start within {_START_LIMIT:g} s; its log is {file}") from None
    finally:
        await _end(process)


def _credentials_file(deployment: Deployment, user: str) -> Path | None:
    if deployment.auth is None:
        return None
    return AuthFolder.open(deployment.auth.folder).credentials_file(user, deployment.auth.tenant)


async def _until_led(deployment: Deployment, folder: Path, url: str) -> None:
    """Wait until a coordinator answers, this one or another: commands typed before that would be told there is none."""
    file = _credentials_file(deployment, "console")
    credentials = read_credentials(file) if file is not None else None
    connection = await open_connection([url], name="up", timeout=_START_LIMIT, credentials=credentials)
    try:
        await retry(
            lambda: call_coordinator(connection, "coordinator", "status", {}, object),
            within=_START_LIMIT,
            on=CoordinatorError,
        )
    except CoordinatorError:
        log = folder / "coordinator.log"
        raise NearcastError(f"no coordinator leads within {_START_LIMIT:g} s; the log of this one is {log}") from None
    finally:
        await connection.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        try:
            async with asyncio.timeout(_STOP_LIMIT):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
