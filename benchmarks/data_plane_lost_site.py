"""`kill -9` of the only site that manages a durable topic, for good, under load: how soon all is processed elsewhere.

Sites and coordinator are processes of their own, with the default settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.data_plane_catch_up import RATE, Ledger, wait_for
from benchmarks.measure import Figure

import nearcast
from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.site.ports import free_ports

NEARCAST = (sys.executable, "-c", "from nearcast.cli import main; main()")
SITES = ("a", "b", "cloud")
BEFORE, AFTER, ALLOWED = 5.0, 10.0, 5.0
PROCESSOR = """
from nearcast import processor

@processor("echo.x", spool=10)
def echo(message, spool):
    return message.payload
"""


async def lost_site() -> list[Figure]:
    """Publications that were acknowledged until the site counts as lost: when the last one of them is processed."""
    lost_after = CoordinatorSettings().site_lost_after
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as folder:
        config, urls = _deployment(Path(folder))
        async with contextlib.AsyncExitStack() as stack:
            first, *_ = await asyncio.gather(
                *(_running(stack, "Ready.", "site", "run", "--config", str(config), "--name", name) for name in SITES)
            )
            await _running(stack, "", "coordinator", "run", "--url", urls["cloud"])
            client = await stack.enter_async_context(nearcast.connect(urls["b"], timeout=30))
            reader = await stack.enter_async_context(nearcast.connect(urls["cloud"], timeout=30))
            await reader.subscribe("echo.x", callback=ledger.take)
            await asyncio.sleep(BEFORE)  # reports have come: the coordinator knows all sites
            publishing = asyncio.create_task(ledger.publish(client, BEFORE + lost_after + AFTER))
            await asyncio.sleep(BEFORE)
            first.kill()  # its broker, store and workers end with it
            killed = time.perf_counter()
            await publishing
            await wait_for(ledger.is_complete)
    before = [one for one, when in ledger.acknowledged.items() if when <= killed + lost_after]
    waited = sum(ledger.came[one] > killed + lost_after for one in before)
    seconds = max(ledger.came[one] for one in before) - killed
    what = (
        f"kill -9 of the only managing site at {RATE:,} msg/s: all acknowledged until it is lost, processed elsewhere"
    )
    detail = f"site_lost_after is {lost_after:g} s; {waited:,} of {len(ledger.acknowledged):,} waited for it"
    return [Figure(what, f"{seconds:.1f} s", detail, seconds / (lost_after + ALLOWED), f"≤ {lost_after + ALLOWED:g} s")]


@contextlib.asynccontextmanager
async def _process(ready: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            while ready and (line := await process.stdout.readline()) and not line.startswith(ready.encode()):
                pass
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _running(stack: contextlib.AsyncExitStack, ready: str, *arguments: str) -> asyncio.subprocess.Process:
    return await stack.enter_async_context(_process(ready, *arguments))


def _deployment(folder: Path) -> tuple[Path, dict[str, str]]:
    (folder / "echo_processors.py").write_text(PROCESSOR)
    port, urls = free_ports(10 * len(SITES)), {}
    lines = ['processors = ["echo_processors"]', ""]
    for n, name in enumerate(SITES):
        urls[name] = f"nats://127.0.0.1:{port + 10 * n}"
        lines += ["[[site]]", f'name = "{name}"', f"port = {port + 10 * n}"]
        lines += ['kind = "cloud"'] if name == "cloud" else []
        lines += ["[site.store]", f'directory = "stores/{name}"', ""]
        (folder / "stores" / name).mkdir(parents=True)
    lines += ["[[topic]]", 'name = "echo.x"', 'managed_by = ["a"]', f"replicas = {list(SITES)}", "quorum = 2"]
    config = folder / "nearcast.toml"
    config.write_text("\n".join(lines))
    return config, urls
