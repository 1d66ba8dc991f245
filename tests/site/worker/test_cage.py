"""Processors that take too much: memory, files, processes; and what they leave behind."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.errors import InputError
from nearcast.site.process_groups import group_size, kill_group, kill_session
from nearcast.site.processor_user import processor_user, require_access
from nearcast.site.worker.cage import Cage
from nearcast.site.worker.cgroup import Cgroup, cgroup_parents
from nearcast.site.worker.spool import Spool

LIMITS = ProcessorLimits(memory_mb=256, open_files=32, environment=("NAMED",))


def run(code: str, limits: ProcessorLimits = LIMITS) -> subprocess.CompletedProcess[str]:
    return in_cage([sys.executable, "-c", code], limits)


def in_cage(command: list[str], limits: ProcessorLimits) -> subprocess.CompletedProcess[str]:
    cage = Cage(limits)
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **cage.options)
    finally:
        cage.close()


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


@pytest.fixture
def cage() -> Iterator[Cage]:
    made = Cage(LIMITS)
    yield made
    made.close()


@pytest.mark.parametrize("kill", [kill_group, lambda group: kill_session(os.getsid(group))])
def test_children_that_ignore_signals_are_killed_with_their_group_or_session(kill, cage: Cage) -> None:
    options = cage.options if kill is kill_group else cage.options | {"process_group": None, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True, **options) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        group = os.getpgid(child)
        assert group_size(group) == 2
        kill(parent.pid)
        assert parent.stdout.read() == ""  # the child has let go of it, too
    deadline = time.monotonic() + 20
    while group_size(group) and time.monotonic() < deadline:  # the system may take a moment to bury it
        time.sleep(0.01)
    assert group_size(group) == 0


def can_make_cgroups() -> bool:
    made = Cgroup.create(1 << 30, 100)
    if made is not None:
        made.remove()
    return made is not None


needs_cgroups = pytest.mark.skipif(not can_make_cgroups(), reason="this user may not make cgroups")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change to another user")


@needs_cgroups
def test_a_child_that_leaves_the_group_and_the_session_is_counted_and_killed(cage: Cage) -> None:
    code = CHILD.replace("print(", "os.setsid(); print(")
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, **cage.options) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert group_size(parent.pid) == 1
        cage.entered(parent.pid)
        assert cage.confined
        assert cage.excess(parent.pid) == ""
        cage.kill(parent.pid)
        assert parent.stdout.read() == ""
    assert not os.path.exists(f"/proc/{child}") or group_size(child) == 0


HUNGRY = """
import os
for _ in range(5):
    if os.fork() == 0:
        kept = b"x" * (100 << 20)
        os.read(0, 1)
        os._exit(0)
for _ in range(5):
    os.wait()
"""


@needs_cgroups
def test_memory_is_limited_for_all_that_was_forked_together() -> None:
    """Each of them is within the limit of one process."""
    cage = Cage(ProcessorLimits(memory_mb=128))
    try:
        with subprocess.Popen([sys.executable, "-c", HUNGRY], stdin=subprocess.PIPE, **cage.options) as parent:
            assert parent.stdin is not None
            deadline = time.monotonic() + 120
            while not cage.cause_of_death():
                assert time.monotonic() < deadline
                time.sleep(0.05)
            cage.kill(parent.pid)
        assert cage.cause_of_death() == "took more than 128 MB of memory, with all that it forked"
    finally:
        cage.close()


FORKS = """
import os
made = 0
try:
    while made < 100:
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made, flush=True)
os.read(0, 1)
"""


@needs_cgroups
def test_a_fork_bomb_stops_at_its_limit_and_leaves_nothing() -> None:
    cgroup = Cgroup.create(1 << 30, 20)
    assert cgroup is not None
    with subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=cgroup.join,
    ) as parent:
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) == 19
        assert len(cgroup.pids()) == 20
        cgroup.kill()
        assert cgroup.pids() == set()
    cgroup.remove()
    assert not any(os.path.exists(folder) for folder in cgroup.folders)


@needs_root
def test_as_another_user_it_reads_the_spool_but_no_private_file_and_gains_nothing(open_folder: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    limits = ProcessorLimits(user="nobody")
    secret = open_folder / "secret"
    secret.write_text("key")
    secret.chmod(0o600)
    assert in_cage(["cat", str(secret)], limits).stdout == ""
    assert in_cage(["id", "-u"], limits).stdout == f"{nobody.pw_uid}\n"
    status = in_cage(["cat", "/proc/self/status"], limits).stdout
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == 0
    assert facts["NoNewPrivs"] == "1"
    assert facts["Groups"].split() in ([], [str(nobody.pw_gid)])
    spool = Spool(open_folder / "gps.spool", 10, reader_group=nobody.pw_gid)
    try:
        spool.append(b"id", b"x" * 100_000)  # into a larger file
        assert in_cage(["head", "-c", "8", str(spool.path)], limits).stdout == "NCSPOOL1"
        assert in_cage(["truncate", "-s", "0", str(spool.path)], limits).returncode != 0
    finally:
        spool.close()


@needs_root
def test_a_user_that_cannot_be_is_refused_in_one_sentence(open_folder: Path) -> None:
    nobody = processor_user("nobody")
    require_access(nobody, [open_folder])
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(InputError, match=r"is 'nobody', who may not enter .*/closed and so cannot use .*/closed/run"):
        require_access(nobody, [closed / "run"])
    with pytest.raises(InputError, match="is 'no-such-user'; this machine has no such user"):
        processor_user("no-such-user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_where_cgroups_are_made(tmp_path: Path) -> None:
    """Version 2: where controllers can be given to children, below or beside one's own; version 1: by controller."""
    own = tmp_path / "own"
    for folder in ("service", "service/agent"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "cgroup.controllers").write_text("cpu memory pids")
        (tmp_path / folder / "cgroup.subtree_control").write_text("")
    own.write_text("0::/service/agent\n")
    assert list(cgroup_parents(tmp_path, own)) == [[tmp_path / "service/agent"], [tmp_path / "service"]]
    assert (tmp_path / "service/cgroup.subtree_control").read_text() == "+memory +pids"
    own.write_text("4:memory:/elsewhere/x\n8:pids:/\n0::/\n")
    assert list(cgroup_parents(tmp_path, own)) == [[tmp_path / "memory", tmp_path / "pids"]]
    own.unlink()
    assert list(cgroup_parents(tmp_path, own)) == []
