"""Processors that take too much: memory, files, processes; and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.site.process_groups import group_size, kill_group, kill_session
from nearcast.site.worker.cage import caged

LIMITS = ProcessorLimits(memory_mb=256, open_files=32, environment=("NAMED",))


def run(code: str, limits: ProcessorLimits = LIMITS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False, **caged(limits)
    )


def test_memory_and_open_files_are_limited() -> None:
    ended = run("b'x' * (1 << 30)")
    assert "MemoryError" in ended.stderr
    ended = run("files = [open('/dev/null') for _ in range(100)]")
    assert "Too many open files" in ended.stderr


def test_processor_time_is_limited() -> None:
    assert run("while True: pass", ProcessorLimits(cpu_seconds=1)).returncode < 0


def test_the_environment_has_what_is_named_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "1")
    monkeypatch.setenv("NAMED", "2")
    names = set(run("import os; print(*os.environ)").stdout.split())
    assert "NAMED" in names
    assert "SECRET" not in names
    assert "HOME" not in names


CHILD = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kill", [kill_group, lambda group: kill_session(os.getsid(group))])
def test_children_that_ignore_signals_are_killed_with_their_group_or_session(kill) -> None:
    options = (
        caged(LIMITS) if kill is kill_group else caged(LIMITS) | {"process_group": None, "start_new_session": True}
    )
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, **options) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        group = os.getpgid(child)
        assert group_size(group) == 2
        kill(parent.pid)
        assert parent.stdout.read() == ""  # the child has let go of it, too
    assert group_size(group) == 0
