"""Which sites may own topics: granted with each answer, withheld while the topics of a lost site are given away.

Decisions only, with one monotonic clock. `nearcast.site.site_lease` is the other side.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SiteLeases"]

_SHARE = 0.9  # of `lost_after` is granted; the rest is for clocks of different speed


class SiteLeases:
    """When each site was last heard. It counts as lost `lost_after` seconds later, and its lease has ended by then."""

    def __init__(self, lost_after: float) -> None:
        self._lost_after, self._granted = lost_after, _SHARE * lost_after
        self.last_heard: dict[str, float] = {}
        self._withheld: Counter[str] = Counter()

    def heard(self, site: str, now: float) -> None:
        """A report or a registration came; or a new leader expects one, since its predecessor may have granted."""
        self.last_heard[site] = now

    def lost(self, now: float) -> set[str]:
        """The sites that have been silent for too long."""
        return {site for site, heard in self.last_heard.items() if now - heard > self._lost_after}

    def grant(self, site: str) -> float:
        """The lease that goes with an answer to a site that was heard now, in seconds; 0 is none."""
        return 0.0 if self._withheld[site] else self._granted

    def withhold(self, sites: Collection[str], now: float) -> bool:
        """Grant these sites nothing until `release`, if all of them are lost; their topics may be given away then."""
        if not set(sites) <= self.lost(now):
            return False
        self.withhold_again(sites)
        return True

    def withhold_again(self, sites: Collection[str]) -> None:
        """An earlier leader began to give topics of these sites away, and this one goes on with it."""
        self._withheld.update(set(sites))

    def release(self, sites: Collection[str]) -> None:
        """The topics have new owners in the records, or they stay: the next answer grants a lease again."""
        self._withheld.subtract(set(sites))
