"""The times of a site's lease, for the site and for the coordinator that grants it. All are shares of the grant.

While no coordinator leads, nobody gives topics away, and sites need not stop for want of an answer. A site alone cannot
tell that from being cut off, a majority of all sites can: each of them that has had no answer for the *quiet time* may
*witness* for others, and a site with witnesses (itself among them) from a majority continues for the *witnessed time*.
A coordinator gives the topics of a lost site away only while so many other sites are known to have had its answers
within the quiet time, and to have witnessed nothing that still counts, that no majority is left.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["CLOCK_MARGIN", "digest_of_sites", "is_majority", "prevents_majority", "quiet_time", "witnessed_time"]

CLOCK_MARGIN = 0.9
"""What one clock shows of a time that another one measured, at least: they may differ in speed by some percent."""

_QUIET, _WITNESSED = 2 / 3, 1 / 3


def quiet_time(granted: float) -> float:
    """How long a site has had no answer before it witnesses, or asks for witnesses: more than two reports take."""
    return _QUIET * granted


def witnessed_time(granted: float) -> float:
    """How long a site may continue, from when it asked."""
    return _WITNESSED * granted


def digest_of_sites(sites: Collection[str]) -> str:
    """Tells sets of sites apart; nothing for none."""
    return blake2b(",".join(sorted(sites)).encode(), digest_size=8).hexdigest() if sites else ""


def is_majority(witnesses: Collection[str], sites: Collection[str]) -> bool:
    """Whether these are more than half of all sites."""
    return 2 * len(set(witnesses) & set(sites)) > len(sites)


def prevents_majority(others: Collection[str], site: str, sites: Collection[str]) -> bool:
    """Whether a site can have no majority without these others."""
    return 2 * len(set(sites) - set(others) | {site}) <= len(sites)
