"""Who subscribes to what, from the catalog's changes: a row for each distinct set of values held by live sites."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from nearcast.nats.boundary import MalformedError, decode, drop
from nearcast.nats.catalog import CONFIRMED

__all__ = ["Subscribers"]

_log = logging.getLogger(__name__)
_LEASE = "lease."
# A site renews its lease every few seconds; a site without renewal for this long has no subscribers.
_LEASE_SECONDS = 30.0


class Subscribers:
    """Changes in, subscription tables out; the clock is passed in."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[str, Any]] = {}
        self._sites: dict[tuple[str, str], set[str]] = {}
        self._renewed: dict[str, float] = {}
        self._expired: set[str] = set()

    def apply(self, changes: Iterable[tuple[str, bytes | None]], now: float) -> set[str]:
        """Take changes of the catalog; returns the channels whose tables have changed."""
        changed: set[str] = set()
        for key, value in changes:
            if key == CONFIRMED:
                continue
            if key.startswith(_LEASE):
                self._renewed[key.removeprefix(_LEASE)] = now
                continue
            parts = key.split(".")
            if len(parts) != 3:
                _log.warning("ignored subscription entry %r: not <channel>.<key>.<site>", key)
                continue
            channel, subscription, site = parts
            found: dict[str, Any] = {}
            if value is not None:
                try:
                    found = decode(value, dict[str, Any])
                except MalformedError as error:
                    drop("subscription", key, error)
                    continue
            if value is not None:
                self._renewed[site] = now  # who subscribes is alive
            self._renewed.setdefault(site, now)
            row = (channel, subscription)
            sites = self._sites.setdefault(row, set())
            before = bool(sites - self._expired)
            if value is None:
                sites.discard(site)
            else:
                self._values[row] = found
                sites.add(site)
            if bool(sites - self._expired) != before:
                changed.add(channel)
            if not sites:
                self._sites.pop(row)
                self._values.pop(row, None)
        return changed | self._expire(now)

    def rows(self, channel: str) -> dict[str, dict[str, Any]]:
        """The values of a channel's subscriptions by key, without those of expired sites only."""
        return {
            key: self._values[name, key]
            for (name, key), sites in self._sites.items()
            if name == channel and sites - self._expired
        }

    def held(self) -> list[tuple[str, str]]:
        """(site, "<channel>.<key>") of all subscriptions of live sites."""
        return sorted(
            (site, f"{channel}.{key}")
            for (channel, key), sites in self._sites.items()
            for site in sites - self._expired
        )

    def _expire(self, now: float) -> set[str]:
        expired = {site for site, renewed in self._renewed.items() if now - renewed > _LEASE_SECONDS}
        if expired == self._expired:
            return set()
        different = expired ^ self._expired
        for site in expired - self._expired:
            _log.warning("site %s: lease not renewed for %g s, its subscriptions are suspended", site, _LEASE_SECONDS)
        self._expired = expired
        return {channel for (channel, _), sites in self._sites.items() if sites & different}
