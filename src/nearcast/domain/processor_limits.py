"""What user code may take of the machine."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

__all__ = ["ProcessorLimits"]


class ProcessorLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one processor process; a worker has one. What it forks has limits of the same size, and where the site may
    make cgroups all of them together have them.

    memory_mb: private memory. processes: that it may have, itself among them. cpu_seconds: all it may use before it is
    replaced; none by default, since a message has its own time limit. environment: variables it gets besides those that
    Python needs. user: whose rights it has, if not the site's; only root may give one.
    """

    memory_mb: Annotated[int, Meta(ge=64)] = 2048
    processes: Annotated[int, Meta(ge=1)] = 64
    open_files: Annotated[int, Meta(ge=32)] = 256
    cpu_seconds: Annotated[int, Meta(ge=1)] | None = None
    environment: tuple[str, ...] = ()
    user: Annotated[str, Meta(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]{0,31})?\Z")] = ""
