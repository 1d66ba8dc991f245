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
# Longer than this between two readings of the catalog does not count: leases could not be renewed, or not be seen.
_LONGEST_PAUSE = 5.0


class Subscribers:
    """Changes in, rows of subscription tables out; the clock is passed in."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, dict[str, Any]]] = {}  # by channel and key
        self._sites: dict[str, dict[str, set[str]]] = {}
        self._renewed: dict[str, float] = {}
        self._expired: set[str] = set()
        self._applied = float("inf")

    def apply(self, changes: Iterable[tuple[str, bytes | None]], now: float) -> dict[str, set[str]]:
        """Take changes of the catalog; returns the keys that came or went, by channel."""
        changed: dict[str, set[str]] = {}
        if (missed := now - self._applied - _LONGEST_PAUSE) > 0:
            self._renewed = {site: renewed + missed for site, renewed in self._renewed.items()}
        self._applied = now
        for name, value in changes:
            if name == CONFIRMED:
                continue
            if name.startswith(_LEASE):
                self._renewed[name.removeprefix(_LEASE)] = now
                continue
            parts = name.split(".")
            if len(parts) != 3:
                _log.warning("ignored subscription entry %r: not <channel>.<key>.<site>", name)
                continue
            channel, key, site = parts
            values: dict[str, Any] | None = None
            if value is not None:
                try:
                    values = decode(value, dict[str, Any])
                except MalformedError as error:
                    drop("subscription", name, error)
                    continue
                self._renewed[site] = now  # who subscribes is alive
            self._renewed.setdefault(site, now)
            if self._apply(channel, key, site, values):
                changed.setdefault(channel, set()).add(key)
        for channel, keys in self._expire(now).items():
            changed.setdefault(channel, set()).update(keys)
        return changed

    def row(self, channel: str, key: str) -> dict[str, Any] | None:
        """The values of a subscription; None when no live site holds it."""
        held = self._sites.get(channel, {}).get(key, set()) - self._expired
        return self._values[channel][key] if held else None

    def rows(self, channel: str) -> dict[str, dict[str, Any]]:
        """The values of a channel's subscriptions by key, without those of expired sites only."""
        values = self._values.get(channel, {})
        return {key: values[key] for key, sites in self._sites.get(channel, {}).items() if sites - self._expired}

    def held(self) -> list[tuple[str, str]]:
        """(site, "<channel>.<key>") of all subscriptions of live sites."""
        return sorted(
            (site, f"{channel}.{key}")
            for channel, keys in self._sites.items()
            for key, sites in keys.items()
            for site in sites - self._expired
        )

    def _apply(self, channel: str, key: str, site: str, values: dict[str, Any] | None) -> bool:
        """Whether a row came, went or has other values."""
        sites = self._sites.setdefault(channel, {}).setdefault(key, set())
        before = self.row(channel, key)
        if values is None:
            sites.discard(site)
        else:
            self._values.setdefault(channel, {})[key] = values
            sites.add(site)
        different = self.row(channel, key) != before
        if not sites:
            self._sites[channel].pop(key)
            self._values.get(channel, {}).pop(key, None)
        return different

    def _expire(self, now: float) -> dict[str, set[str]]:
        expired = {site for site, renewed in self._renewed.items() if now - renewed > _LEASE_SECONDS}
        if expired == self._expired:
            return {}
        for site in expired - self._expired:
            _log.warning("site %s: lease not renewed for %g s, its subscriptions are suspended", site, _LEASE_SECONDS)
        before, self._expired = self._expired, expired
        changed = {
            channel: {key for key, sites in keys.items() if bool(sites - before) != bool(sites - expired)}
            for channel, keys in self._sites.items()
        }
        return {channel: keys for channel, keys in changed.items() if keys}
