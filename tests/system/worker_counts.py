"""What workers of real sites have done. One that is busy may not answer in time, and is asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.testing import until

if TYPE_CHECKING:
    from nearcast.protocol.worker import WorkerStats
    from nearcast.site.site import Site

__all__ = ["stats_of_workers"]


async def stats_of_workers(site: Site) -> list[WorkerStats]:
    """Of each worker of a site, once all have answered."""
    found: list[WorkerStats] = []

    async def answered() -> bool:
        found[:] = await site.worker_stats()
        return len(found) >= len(site.workers)

    await until(answered, 60)
    return found
