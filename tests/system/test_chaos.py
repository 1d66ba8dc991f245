"""A short chaos run with real processes: faults happen, the ledger tells of them, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nearcast.lab.chaos import disk
from nearcast.lab.chaos.checker import judge
from nearcast.lab.chaos.runner import ChaosPlan, run_chaos
from nearcast.lab.chaos.schedule import Fault, Phases
from nearcast.lab.wan import missing_right

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]

PHASES = Phases(warm_up=6.0, steady=2.0, recovery=8.0, drain=15.0)


def disks(pid: int) -> list[str]:
    """The disks that a process made; other runs may have theirs."""
    lines = Path("/proc/mounts").read_text().splitlines()
    return [line for line in lines if line.startswith(f"nearcast-chaos-{pid} ")]


@pytest.mark.timeout(900)  # forty processes, and what they write is read twice
async def test_killed_sites_and_clients_are_seen_in_the_ledger_and_nothing_is_left_behind(tmp_path: Path) -> None:
    site = Fault("kill site", ("north",), 6.0, ("north",), ("north",))
    devices = Fault("kill devices", ("dev-east",), 5.0, ("dev-east",))
    verdict = await run_chaos(ChaosPlan(1, (site, devices), PHASES), tmp_path / "ledger", tmp_path / "logs")

    # A loss is found or not, as the code is; that all parts of the ledger were written is what counts here.
    row, second = verdict.faults
    assert (row["kind"], second["kind"]) == ("kill site", "kill devices")
    assert row["published"] > 0
    events = [json.loads(line) for path in (tmp_path / "ledger").iterdir() for line in path.read_text().splitlines()]
    kinds = {event["event"] for event in events}
    assert kinds >= {"topic", "client", "subscribed", "published", "receipt", "processed", "delivered", "stored",
                     "store read", "history", "history read", "replicas", "phase"}  # fmt: skip
    sites = {event["site"] for event in events if event["event"] == "processed"}
    assert {"north", "east", "south", "west"} & sites >= {"north", "east"}
    assert {event["site"] for event in events if event["event"] == "store read"} == {"north", "east", "south", "cloud"}
    assert verdict.counts["messages nobody published"] == 0
    assert judge.TWICE not in verdict.broken
    phase, _ = sorted((event for event in events if event.get("phase") == "fault"), key=lambda event: event["at"])
    incarnations = {event["publisher"] for event in events if event["event"] == "published"}
    assert sum(name.startswith("pub-east.") for name in incarnations) == 2  # killed once, and started again
    assert "kept" in kinds
    silent = [
        event["at"]
        for event in events
        if event["event"] == "processed" and event["site"] == "north" and phase["at"] + 1 < event["at"] < phase["until"]
    ]
    assert silent == []  # it was really gone

    assert disks(os.getpid()) == []


def test_a_small_disk_can_be_filled_and_freed(tmp_path: Path) -> None:
    with disk.small_disk(tmp_path / "d"):
        with disk.filled(tmp_path / "d"):
            assert shutil.disk_usage(tmp_path / "d").free == 0
            with pytest.raises(OSError, match="No space left"), (tmp_path / "d" / "x").open("wb", buffering=0) as file:
                file.write(b"x" * 8192)
        assert shutil.disk_usage(tmp_path / "d").free > 1 << 20
    assert disks(os.getpid()) == []


def test_the_disk_of_a_killed_run_is_removed_by_the_next(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from nearcast.lab.chaos import disk
with disk.small_disk(pathlib.Path({str(tmp_path / "d")!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(disks(process.pid)) == 1
    disk.clear_leftover_disks()
    assert disks(process.pid) == []
