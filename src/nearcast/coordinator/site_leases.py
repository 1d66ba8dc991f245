"""Which sites may own topics: granted with each answer, withheld while the topics of a lost site are given away.

Decisions only, with one monotonic clock. `nearcast.site.site_lease` is the other side, and
`nearcast.domain.lease_times` says what sites do while no coordinator answers.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from nearcast.domain.lease_times import CLOCK_MARGIN, digest_of_sites, prevents_majority, quiet_time

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SiteLeases"]


class _Witness(NamedTuple):
    """What a site said of itself: when the last answer left that it had got, and whom it witnessed for."""

    answered: float
    witnessed: Collection[str] | None


class SiteLeases:
    """When each site was last heard. It counts as lost `lost_after` seconds later, and its lease has ended by then.

    sites: all that have registered. digest: of these.
    """

    def __init__(self, lost_after: float) -> None:
        self._lost_after, self._granted = lost_after, CLOCK_MARGIN * lost_after
        self.sites: frozenset[str] = frozenset()
        self.digest = ""
        self._sets: dict[str, frozenset[str]] = {}  # what `sites` was, by digest
        self.last_heard: dict[str, float] = {}
        self._witnesses: dict[str, _Witness] = {}
        self._known_sites: dict[str, frozenset[str]] = {}
        self._withheld: Counter[str] = Counter()

    def heard(self, site: str, now: float) -> None:
        """A report or a registration came; or a new leader expects one, since its predecessor may have granted."""
        self.last_heard[site] = now
        if site not in self.sites:
            self.sites |= {site}
            self.digest = digest_of_sites(self.sites)
            self._sets[self.digest] = self.sites

    def told(self, site: str, answered: float, witnessed: Collection[str] | None, digest: str) -> None:
        """A report says when (by this clock) the last answer left that its site had got, and whom it witnessed for.

        digest: of the sites that it knows. Reports may overtake each other.
        """
        if answered >= self._witnesses.get(site, _Witness(-inf, None)).answered:
            self._witnesses[site] = _Witness(answered, witnessed)
            self._known_sites[site] = self._sets.get(digest, frozenset())

    def lost(self, now: float) -> set[str]:
        """The sites that have been silent for too long."""
        return {site for site, heard in self.last_heard.items() if now - heard > self._lost_after}

    def grant(self, site: str) -> float:
        """The lease that goes with an answer to a site that was heard now, in seconds; 0 is none."""
        return 0.0 if self._withheld[site] else self._granted

    def withhold(self, sites: Collection[str], now: float) -> bool:
        """Grant these sites nothing until `release`, if all of them are lost; their topics may be given away then."""
        if not set(sites) <= self.lost(now) or not all(self._has_ended(site, now) for site in sites):
            return False
        self.withhold_again(sites)
        return True

    def withhold_again(self, sites: Collection[str]) -> None:
        """An earlier leader began to give topics of these sites away, and this one continues it."""
        self._withheld.update(set(sites))

    def release(self, sites: Collection[str]) -> None:
        """The topics have new owners in the records, or they stay: the next answer grants a lease again."""
        self._withheld.subtract(set(sites))

    def _has_ended(self, site: str, now: float) -> bool:
        """Whether the lease of a lost site cannot have gone on with witnesses from a majority of the sites it knows."""
        since = now - CLOCK_MARGIN * quiet_time(self._granted)
        others = {
            other
            for other, said in self._witnesses.items()
            if said.answered > since and said.witnessed is not None and site not in said.witnessed
        }
        known = self._known_sites.get(site) or self.sites
        return prevents_majority(others, site, self.sites) and prevents_majority(others, site, known)
