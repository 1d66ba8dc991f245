"""Real sites for tests, and proof that each test leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from nearcast.testing import RunningSites, sites

# A processor for every behaviour the tests need, chosen by fields of the message.
PROCESSORS = """
import os, signal, time
from nearcast import processor

@processor(">", spool=20, timeout=6)
def echo(message, spool):
    data = message.data
    match data.get("do"):
        case "raise": raise ValueError("on purpose")
        case "hang": time.sleep(60)
        case "exit": os._exit(7)
        case "kill": os.kill(os.getpid(), signal.SIGKILL)
        case "nothing": return
        case "shout":
            yield b"x" * data["bytes"]
            return
        case "past":
            yield {"n": data["n"], "past": [m.data["n"] for m in spool]}
            return
    yield {"n": data.get("n"), "pid": os.getpid()}
"""


@pytest.fixture
def city(tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[RunningSites]]:
    """`async with city(TopicSpec(...), ...) as c`: tokyo and osaka at the edge, and the cloud, with stores."""
    (tmp_path / "city_processors.py").write_text(PROCESSORS)
    return partial(
        sites,
        names=("tokyo", "osaka", "cloud"),
        processors=["city_processors"],
        search_path=[str(tmp_path)],
        folder=tmp_path,
    )


def left_behind() -> list[str]:
    """Child processes and listening sockets of this test process."""
    me = psutil.Process()
    children = []
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended just now
            children.append(" ".join(child.cmdline()))
    listening = [f"listening on {c.laddr}" for c in me.net_connections() if c.status == psutil.CONN_LISTEN]
    return [what for what in children if "resource_tracker" not in what] + listening


def open_descriptors() -> list[str]:
    """
    What this process has open, but for connections with its child processes: those with a Spark that tests share
    are opened and closed as garbage is collected, at any time. So are its UNIX sockets, whose peers nobody tells.
    """
    me = psutil.Process()
    ports_of_children = set()
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ended just now
            ports_of_children |= {c.laddr.port for c in child.net_connections() if c.laddr}
    with_children = {c.fd for c in me.net_connections() if c.raddr and c.raddr.port in ports_of_children}
    if "pyspark" in sys.modules and sys.modules["pyspark"].SparkContext._gateway is not None:
        with_children |= {c.fd for c in me.net_connections("unix")}
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that listed the folder
            if int(descriptor) not in with_children:
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found


def _described(descriptors: Iterable[str]) -> list[str]:
    """With the addresses of sockets: whose they are."""
    sockets = {}
    for connection in psutil.Process().net_connections("all"):
        with contextlib.suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{connection.fd}")
            sockets[name] = f"{name} {connection.laddr} to {connection.raddr} {connection.status}"
    return sorted(sockets.get(one, one) for one in descriptors)


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    """No process, no socket and no pipe outlives the block; what was killed has a moment to go."""
    descriptors = open_descriptors()
    before = set(left_behind())  # a Spark that all tests of this process share
    yield

    def remains() -> bool:
        return bool(set(left_behind()) - before) or len(open_descriptors()) > len(descriptors) + 2

    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and remains():
        time.sleep(0.05)
    assert not set(left_behind()) - before
    assert len(open_descriptors()) <= len(descriptors) + 2, (
        f"descriptors left behind: {_described(set(open_descriptors()) - set(descriptors))}"
    )


def _shares_sites(node: pytest.Item | pytest.Module) -> bool:
    """Whether tests share the loop of their module, and with it sites that open and close connections all the time."""
    marker = node.get_closest_marker("asyncio")
    return marker is not None and marker.kwargs.get("loop_scope") == "module"


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind_by_all(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where tests share sites, nothing outlives the last one."""
    with nothing_left_behind() if _shares_sites(request.node) else contextlib.nullcontext():
        yield


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, no socket and no pipe outlives its test; directories are all in `tmp_path`."""
    with contextlib.nullcontext() if _shares_sites(request.node) else nothing_left_behind():
        yield
