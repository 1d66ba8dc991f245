"""Who subscribes to what, as the registry tells: a row for each distinct set of values, held by live sites."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

__all__ = ["Subscribers"]

_log = logging.getLogger(__name__)
_LEASE = "lease."
# A site renews its lease every few seconds; one that was not heard for this long has no subscribers.
_LEASE_SECONDS = 30.0


class Subscribers:
    """Events in, tables out; the clock is passed in."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], dict[str, Any]] = {}
        self._sites: dict[tuple[str, str], set[str]] = {}
        self._heard: dict[str, float] = {}
        self._gone: set[str] = set()

    def apply(self, changes: Iterable[tuple[str, bytes | None]], now: float) -> set[str]:
        """Take changes of the registry; returns the channels whose tables are different now."""
        changed: set[str] = set()
        for key, value in changes:
            if key.startswith(_LEASE):
                self._heard[key.removeprefix(_LEASE)] = now
                continue
            parts = key.split(".")
            if len(parts) != 3:
                _log.warning("subscription entry %r is not understood", key)
                continue
            channel, subscription, site = parts
            self._heard.setdefault(site, now)
            row = (channel, subscription)
            sites = self._sites.setdefault(row, set())
            before = bool(sites - self._gone)
            if value is None:
                sites.discard(site)
            else:
                self._values[row] = msgspec.json.decode(value)
                sites.add(site)
            if bool(sites - self._gone) != before:
                changed.add(channel)
            if not sites:
                self._sites.pop(row)
                self._values.pop(row, None)
        return changed | self._lapse(now)

    def rows(self, channel: str) -> dict[str, dict[str, Any]]:
        """The values of a channel's subscriptions by key, without those that only lost sites hold."""
        return {
            key: self._values[name, key]
            for (name, key), sites in self._sites.items()
            if name == channel and sites - self._gone
        }

    def held(self) -> list[tuple[str, str]]:
        """(site, "<channel>.<key>") for all that live sites hold."""
        return sorted(
            (site, f"{channel}.{key}") for (channel, key), sites in self._sites.items() for site in sites - self._gone
        )

    def _lapse(self, now: float) -> set[str]:
        gone = {site for site, heard in self._heard.items() if now - heard > _LEASE_SECONDS}
        if gone == self._gone:
            return set()
        different = gone ^ self._gone
        for site in gone - self._gone:
            _log.warning("site %s was not heard for %g s: its subscriptions rest", site, _LEASE_SECONDS)
        self._gone = gone
        return {channel for (channel, _), sites in self._sites.items() if sites & different}
