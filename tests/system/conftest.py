"""Real sites for tests, and proof that each test leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from nearcast.testing import RunningSites, sites

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


@contextlib.contextmanager
def nothing_left_behind() -> Iterator[None]:
    """No process, no socket and no pipe outlives the block; what was killed has a moment to go."""
    descriptors = len(os.listdir("/proc/self/fd"))
    before = set(left_behind())  # a Spark that all tests of this process share
    yield
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and set(left_behind()) - before:
        time.sleep(0.05)
    assert not set(left_behind()) - before
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2, "descriptors left behind"


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No process, no socket and no pipe outlives its test; directories are all in `tmp_path`."""
    with nothing_left_behind():
        yield
