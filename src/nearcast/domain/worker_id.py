"""The name of a worker among all sites."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["WorkerId"]


class WorkerId(NamedTuple):
    """A worker of a site; shown as `site/worker`. A member of a topic is one of these."""

    site: str
    worker: str

    def __str__(self) -> str:
        return f"{self.site}/{self.worker}"
