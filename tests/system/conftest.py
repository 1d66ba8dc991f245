"""Real sites for tests, and proof that each test leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nearcast.domain.deployment import Deployment
from nearcast.domain.site import Limits, SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec
from nearcast.site.ports import free_ports
from nearcast.site.site import Site, run_sites

# A processor for every behaviour the tests need, chosen by fields of the message.
PROCESSORS = """
import os, signal, time
from nearcast import processor

@processor(">", spool=20, timeout=1.5)
def echo(message, spool):
    data = message.data
    match data.get("do"):
        case "raise": raise ValueError("on purpose")
        case "hang": time.sleep(60)
        case "exit": os._exit(7)
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "nothing": return
        case "past":
            yield {"n": data["n"], "past": [m.data["n"] for m in spool]}
            return
    yield {"n": data.get("n"), "pid": os.getpid()}
"""


class City:
    """Three sites with stores: tokyo and osaka at the edge, and the cloud."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sites: dict[str, Site] = {}

    def url(self, site: str) -> str:
        return self.sites[site].spec.url


@pytest.fixture
def city(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[City]]:
    """`async with city(TopicSpec(...), ...) as c`: three running sites."""

    @contextlib.asynccontextmanager
    async def start(
        *topics: TopicSpec,
        names: tuple[str, ...] = ("tokyo", "osaka", "cloud"),
        mqtt: bool = False,
        max_payload: int = 1 << 20,
        report_seconds: float = 5.0,
    ) -> AsyncIterator[City]:
        (tmp_path / "city_processors.py").write_text(PROCESSORS)
        specs = []
        for name in names:
            (tmp_path / "stores" / name).mkdir(parents=True, exist_ok=True)
            port = free_ports()
            specs.append(
                SiteSpec(
                    name,
                    "cloud" if name == "cloud" else "edge",
                    port=port,
                    mqtt_port=port + 5 if mqtt else None,
                    store=StoreSpec(tmp_path / "stores" / name),
                    limits=Limits(max_payload=max_payload),
                )
            )
        c = City(tmp_path)
        deployment = Deployment(tuple(specs), topics, ("city_processors",), report_seconds=report_seconds)
        async with run_sites(deployment, tmp_path / "run", [str(tmp_path)]) as c.sites:
            await interest_settled()
            yield c

    return start


async def interest_settled() -> None:
    """Gateways learn of subscriptions in the background; there is no event to wait for."""
    await asyncio.sleep(0.3)


async def until(holds: Callable[[], Awaitable[bool]] | Callable[[], bool], limit: float = 30.0) -> None:
    """Wait for a condition; fail when it does not come to hold."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + limit
    while True:
        answer = holds()
        if answer if isinstance(answer, bool) else await answer:
            return
        assert clock() < deadline, "the condition did not come to hold in time"
        await asyncio.sleep(0.02)


def left_behind() -> list[str]:
    """Child processes and listening sockets of this test process."""
    me = psutil.Process()
    children = []
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
            children.append(" ".join(child.cmdline()))
    listening = [f"listening on {c.laddr}" for c in me.net_connections() if c.status == psutil.CONN_LISTEN]
    return [what for what in children if "resource_tracker" not in what] + listening


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No process, no socket and no pipe outlives its test; directories are all in `tmp_path`."""
    descriptors = len(os.listdir("/proc/self/fd"))
    before = set(left_behind())  # a Spark that all tests of this process share
    yield
    assert not set(left_behind()) - before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2, "descriptors left behind"
