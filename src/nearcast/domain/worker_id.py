"""The name of a worker among all sites."""

from __future__ import annotations

from typing import NamedTuple

from nearcast.domain.ranges import Name

__all__ = ["WorkerId"]


class WorkerId(NamedTuple):
    """A worker of a site; shown as `site/worker`. A member of a topic is one of these."""

    site: Name
    worker: Name

    def __str__(self) -> str:
        return f"{self.site}/{self.worker}"
