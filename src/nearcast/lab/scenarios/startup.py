"""What deployments at nodes share when they start: the files they read, and when all parts know each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.config.deployment_file import read_configuration
from nearcast.errors import NearcastError
from nearcast.nats.coordinator_rpc import CoordinatorError, call_coordinator
from nearcast.site.site import Site

if TYPE_CHECKING:
    from nearcast.nats.connection import Connection

__all__ = ["keep_logs", "toml_text", "wait_for_coordinator", "wait_for_gateways"]


def toml_text(**fields: Any) -> str:
    """A TOML file with these fields, which may be specifications; what is None is left out."""
    plain = msgspec.to_builtins(fields, enc_hook=str)
    return "".join(f"{name} = {_toml(value)}\n" for name, value in plain.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items() if one is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # text, numbers and booleans are written in TOML as in JSON


async def wait_for_gateways(
    configuration: Path, call: Callable[[str, Callable[[], Coroutine[Any, Any, None]]], Awaitable[None]]
) -> None:
    """Wait until each site of a configuration can send to each other. call: runs a coroutine at a node."""
    deployment = read_configuration(configuration)
    names = [spec.name for spec in deployment.sites]
    sites = {name: Site(deployment, name, configuration.parent / ".nearcast" / name) for name in names}
    await asyncio.gather(*(call(name, partial(site.wait_for_gateways, names)) for name, site in sites.items()))


async def wait_for_coordinator(connection: Connection, sites: int, limit: float) -> None:
    """Wait until so many sites registered and measured each other; raises NearcastError when that takes too long."""
    status: dict[str, Any] = {}
    try:
        async with asyncio.timeout(limit):
            while status.get("sites") != sites or not status["ready"]:
                await asyncio.sleep(0.2)
                with contextlib.suppress(CoordinatorError):
                    status = await call_coordinator(connection, "coordinator", "status", {}, dict)
    except TimeoutError:
        raise NearcastError(f"the coordinator is not ready after {limit:g} s: {status}") from None


def keep_logs(folder: Path, logs: Path) -> None:
    """Copy what brokers, stores and workers wrote."""
    for log in folder.glob(".nearcast/*/*.log"):
        with contextlib.suppress(OSError):
            shutil.copy(log, logs / f"{log.parent.name}-{log.name}")
