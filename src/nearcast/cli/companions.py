"""A coordinator and the console beside the sites of `nearcast up`, each a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nearcast.auth.auth_folder import AuthFolder
from nearcast.errors import InputError, NearcastError
from nearcast.nats.connection import open_connection
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.nats.identity.credentials import VARIABLE, read_credentials
from nearcast.nats.tasks import cancel_and_wait, retry
from nearcast.site.supervisor import die_with_parent

if TYPE_CHECKING:
    from nearcast.domain.deployment import Deployment

__all__ = ["running_companions"]

_log = logging.getLogger(__name__)
_START_LIMIT, _STOP_LIMIT = 60.0, 20.0
_FIRST_PAUSE, _LONGEST_PAUSE, _STABLE_AFTER = 0.1, 10.0, 30.0
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
    """A command of ours with the credentials of a user, kept running; its first line.

    Its log is a file named after the user.
    """
    companion = _Companion(deployment, folder, user, arguments)
    monitor = None
    try:
        line = await companion.start("wb")
        monitor = asyncio.create_task(companion.monitor(), name=f"monitor {user}")
        yield line
    finally:
        await cancel_and_wait(monitor)
        await companion.stop()


class _Companion:
    """A process that is started again when it dies, after pauses that double as those of servers and workers do."""

    def __init__(self, deployment: Deployment, folder: Path, user: str, arguments: Sequence[str]) -> None:
        self._deployment, self._user, self._arguments = deployment, user, arguments
        self._log_file = folder / f"{user}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, mode: Literal["wb", "ab"]) -> str:
        """Start it and wait for its first line. mode: of its log."""
        environment = dict(os.environ)
        if (credentials := _credentials_file(self._deployment, self._user)) is not None:
            environment[VARIABLE] = str(credentials)
        with self._log_file.open(mode) as log:
            self._process = await asyncio.create_subprocess_exec(
                *_NEARCAST, *self._arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=log, env=environment, preexec_fn=partial(die_with_parent, signal.SIGINT),
                start_new_session=True,  # Ctrl-C is for `up`, which ends them
            )  # fmt: skip
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_START_LIMIT):
                line = (await self._process.stdout.readline()).decode().strip()
        except TimeoutError:
            raise NearcastError(
                f"the {self._user} did not start within {_START_LIMIT:g} s; its log is {self._log_file}"
            ) from None
        if not line:
            await self._process.wait()
            last = self._log_file.read_text(errors="replace").strip().splitlines()
            raise NearcastError(f"the {self._user} did not start: {last[-1] if last else 'it said nothing'}")
        return line

    async def monitor(self) -> None:
        """Start it again whenever it has ended."""
        clock, pause = asyncio.get_running_loop().time, _FIRST_PAUSE
        while True:
            started, reason = clock(), await self._until_it_ends()
            if clock() - started > _STABLE_AFTER:
                pause = _FIRST_PAUSE
            line = ""
            while not line:
                _log.warning("%s; restarting in %.1f s; its log is %s", reason, pause, self._log_file)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    line = await self.start("ab")
                except (NearcastError, OSError) as error:
                    await self.stop()
                    reason = str(error)
            _log.info("the %s is up again: %s", self._user, line)

    async def stop(self) -> None:
        """End it, by force when it does not within twenty seconds."""
        if self._process is not None:
            await _end(self._process)

    async def _until_it_ends(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        while await self._process.stdout.read(4096):  # a full pipe would stop it
            pass
        return f"the {self._user} ended with code {await self._process.wait()}"


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
