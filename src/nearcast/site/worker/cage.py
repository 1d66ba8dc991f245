"""The cage of a processor process: resource limits, an environment of named variables, a process group killed whole.

It keeps user code from taking the machine by mistake. It is no sandbox: docs/data-plane.md says what is not isolated.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.domain.processor_limits import ProcessorLimits

__all__ = ["caged"]

# What Python needs to find itself and its modules, and to know the language and the time.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
_PR_SET_PDEATHSIG = 1


def caged(limits: ProcessorLimits) -> dict[str, Any]:
    """Arguments of `subprocess.Popen`: a group of its own, the limits and the variables."""
    return {
        "process_group": 0,
        "preexec_fn": _limit(limits),
        "env": {name: os.environ[name] for name in (*_ENVIRONMENT, *limits.environment) if name in os.environ},
    }


def _limit(limits: ProcessorLimits) -> Callable[[], None]:
    wanted = [(resource.RLIMIT_DATA, limits.memory_mb << 20), (resource.RLIMIT_NOFILE, limits.open_files)]
    wanted.append((resource.RLIMIT_CORE, 0))
    if limits.cpu_seconds is not None:
        wanted.append((resource.RLIMIT_CPU, limits.cpu_seconds))
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def apply() -> None:
        for kind, value in wanted:
            _, hard = resource.getrlimit(kind)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (most, most))
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # user code may ignore others

    return apply
