"""The cage of a processor process: resource limits, a cgroup, another user, named variables, a group killed whole.

It keeps user code from taking the machine by mistake. It is no sandbox: docs/data-plane.md says what is not isolated.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

from nearcast.site.process_groups import group_size, kill_group
from nearcast.site.processor_user import processor_user
from nearcast.site.worker.cgroup import Cgroup

if TYPE_CHECKING:
    import pwd
    from collections.abc import Callable

    from nearcast.domain.processor_limits import ProcessorLimits

__all__ = ["Cage"]

_log = logging.getLogger(__name__)
# What Python needs to find itself and its modules, and to know the language and the time.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
# Above the private memory that each process may have: what it shares with others counts in a cgroup, too.
_SHARED_BYTES = 64 << 20
_THREADS = 512  # that a cgroup may have besides one per process


class Cage:
    """Of one processor process and all that it forks. Give `options` to `subprocess.Popen`, and `close` it afterwards.

    confined: whether there is a cgroup, which holds what leaves the process group, too.
    """

    def __init__(self, limits: ProcessorLimits) -> None:
        self._limits = limits
        user = processor_user(limits.user)
        tasks = limits.processes + _THREADS
        self._cgroup = Cgroup.create((limits.memory_mb << 20) + _SHARED_BYTES, tasks)
        self.options: dict[str, Any] = {
            "process_group": 0,
            "preexec_fn": _enter(limits, user, self._cgroup),
            "env": {name: os.environ[name] for name in (*_ENVIRONMENT, *limits.environment) if name in os.environ},
        }

    @property
    def confined(self) -> bool:
        """Whether nothing can leave it."""
        return self._cgroup is not None

    def entered(self, pid: int) -> None:
        """The process was started. One that could not join its cgroup has none."""
        if self._cgroup is not None and pid not in self._cgroup.pids():
            _log.info("processor process %d: no cgroup; its limits hold for each process alone", pid)
            self._cgroup.remove()
            self._cgroup = None

    def excess(self, pid: int) -> str:
        """What is too much of the processes that began with this one; nothing when nothing is."""
        most = self._limits.processes
        count = len(self._cgroup.pids()) if self._cgroup is not None else group_size(pid)
        return f"has more than {most} processes" if count > most else ""

    def kill(self, pid: int) -> None:
        """Kill the process and all that it forked."""
        kill_group(pid)
        if self._cgroup is not None:
            self._cgroup.kill()

    def cause_of_death(self) -> str:
        """Why the kernel ended it, if it did for a limit."""
        if self._cgroup is not None and self._cgroup.ran_out_of_memory():
            return f"took more than {self._limits.memory_mb} MB of memory, with all that it forked"
        return ""

    def close(self) -> None:
        """Kill what is left, and remove the cgroup."""
        if self._cgroup is not None:
            self._cgroup.remove()


def _enter(limits: ProcessorLimits, user: pwd.struct_passwd | None, cgroup: Cgroup | None) -> Callable[[], None]:
    """What the new process does before anything else."""
    wanted = [(resource.RLIMIT_DATA, limits.memory_mb << 20), (resource.RLIMIT_NOFILE, limits.open_files)]
    wanted.append((resource.RLIMIT_CORE, 0))
    if limits.cpu_seconds is not None:
        wanted.append((resource.RLIMIT_CPU, limits.cpu_seconds))
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def enter() -> None:
        if cgroup is not None:
            with contextlib.suppress(OSError):  # see `entered`
                cgroup.join()
        if user is not None:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        for kind, value in wanted:
            _, hard = resource.getrlimit(kind)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))
        if libc is not None:
            if user is not None:
                libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # no program that it starts gives it more
            # After the change of user, which would undo it. User code may ignore other signals.
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return enter
