"""A copy of the coordinators' state at a second site, and its restoration when the first store has lost it.

The leader writes every change to the second store a moment later. A coordinator that finds the first store empty asks
the sites which terms they have seen, and restores the freshest copy among their stores before it leads. What changed
in the last moment is missing then: the sites bring the records they follow when they register.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from typing import TYPE_CHECKING

import msgspec
from nats.errors import Error as NatsError

from nearcast.coordinator.term import DeposedError, highest_of_most
from nearcast.domain.ranges import Count, Term
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.boundary import MalformedError, decode, drop
from nearcast.nats.kv import Bucket, BucketError, ConflictError
from nearcast.nats.lease import LEASE_KEY, Lease
from nearcast.nats.tasks import gather_or_cancel
from nearcast.protocol.registration import SiteStanding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nearcast.nats.connection import Connection

__all__ = ["IDENTITY", "StateCopy", "discover_sites", "open_state"]

_log = logging.getLogger(__name__)
IDENTITY = "identity"
"""The key of what tells this state from one that was lost: sites that followed another one register again."""
_COPIED = "copied"
_NOT_COPIED = (LEASE_KEY, IDENTITY, _COPIED)
_GATHER = 0.2  # changes of this time are written together
_RETRY_PAUSE = 2.0
_AT_ONCE = 100
_DISCOVERY_LIMIT = 3.0


class CopyStatus(msgspec.Struct, frozen=True):
    """How fresh a copy is: the leader's term, and the revision of the state up to which it is complete."""

    term: Term
    revision: Count


class StateCopy:
    """Copies the state while a coordinator leads. It lags behind by a moment; nobody waits for it."""

    def __init__(self, connection: Connection, bucket: Bucket) -> None:
        self._connection, self._bucket = connection, bucket
        self._changes: dict[str, bytes | None] = {}  # of a key the last one
        self._changed = asyncio.Event()
        self.site = ""  # that has a complete copy

    def note(self, key: str, value: bytes | None) -> None:
        """A key was written, or erased."""
        self._changes[key] = value
        self._changed.set()

    async def run(self, candidates: Callable[[], list[str]], term: Callable[[], int]) -> None:
        """Copy until cancelled. candidates: the other sites with a store that answers, the preferred first."""
        while True:
            found = candidates()
            site = self.site if self.site in found else next(iter(found), "")
            if site:
                try:
                    await self._follow(site, candidates, term)
                except (BucketError, ConflictError, NatsError, TimeoutError, OSError) as error:
                    _log.warning("the state is not copied to %s: %s", site, error or "no answer")
                except DeposedError:
                    raise
                except Exception:
                    _log.exception("the state is not copied to %s", site)
            self.site = ""
            await asyncio.sleep(_RETRY_PAUSE)

    async def _follow(self, site: str, candidates: Callable[[], list[str]], term: Callable[[], int]) -> None:
        """Make the copy complete, then follow the changes for as long as the site is a candidate."""
        copy = await Bucket(self._connection, site, subjects.STATE_COPY_BUCKET).create()
        self._changes.clear()  # what is read next has them
        there = {key: entry for key, entry in (await copy.read_all()).items() if key not in _NOT_COPIED}
        here = {key: entry for key, entry in (await self._bucket.read_all()).items() if key not in _NOT_COPIED}
        revisions = {key: entry.sequence for key, entry in there.items()}
        differing: dict[str, bytes | None] = {key: None for key in there if key not in here}
        differing |= {
            key: entry.payload for key, entry in here.items() if key not in there or there[key].payload != entry.payload
        }
        while True:
            await self._write(copy, differing, revisions)
            status = CopyStatus(term(), await self._bucket.last_revision())
            await copy.put(_COPIED, msgspec.json.encode(status))
            if not self.site:
                _log.info("the state is copied to the store of %s", site)
            self.site = site
            while not self._changes and site in candidates():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_PAUSE):
                        await self._changed.wait()
            await asyncio.sleep(_GATHER)
            if site not in candidates():  # asked also while changes never pause
                return
            differing, self._changes = self._changes, {}

    async def _write(self, copy: Bucket, changes: Mapping[str, bytes | None], revisions: dict[str, int]) -> None:
        async def write(key: str, value: bytes | None) -> None:
            if value is not None:
                revisions[key] = await copy.put(key, value)
            elif key in revisions:
                await copy.erase(key, revisions.pop(key))

        await _in_parts([(key, value) for key, value in changes.items()], write)


async def _in_parts(items: list[tuple[str, bytes | None]], write: Callable[[str, bytes | None], object]) -> None:
    for start in range(0, len(items), _AT_ONCE):
        await gather_or_cancel(*(write(*item) for item in items[start : start + _AT_ONCE]))  # type: ignore[arg-type]


async def open_state(connection: Connection, site: str) -> tuple[Bucket, int]:
    """The bucket of the state in a site's store, and the highest term that sites have seen if it was made just now.

    A bucket that is not there yet is made, and filled from a copy if a store has one.
    """
    bucket = await Bucket(connection, site, subjects.STATE_BUCKET).create(within=30.0)
    if await bucket.get(IDENTITY) is not None:
        return bucket, 0 if await _has_readable_lease(bucket) else majority_term(await discover_sites(connection))
    term = 0
    if not await bucket.read_all():
        standings = await discover_sites(connection)
        term = majority_term(standings)
        others = {name for standing in standings for name in standing.sites} - {site}
        term = max(term, await _restore(connection, bucket, sorted(others)))
    try:
        await bucket.put(IDENTITY, secrets.token_hex(8).encode(), expected=0)
    except ConflictError:
        _log.info("another coordinator has opened the state at the same time")
    return bucket, term


async def _has_readable_lease(bucket: Bucket) -> bool:
    entry = await bucket.get(LEASE_KEY)
    try:
        return entry is None or bool(decode(entry.payload, Lease))
    except MalformedError:
        return False


def majority_term(standings: Sequence[SiteStanding]) -> int:
    """The highest term that most of the sites have seen: one that lies, or was lied to, does not count."""
    return highest_of_most([standing.term for standing in standings])


async def discover_sites(connection: Connection) -> list[SiteStanding]:
    """What all sites say of themselves. Waits a moment for those that others name."""
    found: dict[str, SiteStanding] = {}
    complete = asyncio.Event()

    def take(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        try:
            standing: SiteStanding = decode(payload, SiteStanding)
        except MalformedError as error:
            if payload:  # else nobody listens
                drop("standing of a site", subject, error)
            return
        found[standing.site] = standing
        if {name for one in found.values() for name in one.sites} <= found.keys():
            complete.set()

    inbox = connection.new_inbox()
    subscription = await connection.subscribe_raw(inbox, take)
    try:
        for _ in range(3):  # interest in it, or a site, may be new
            connection.send(subjects.SITE_DISCOVERY, b"", b"", inbox)
            try:
                async with asyncio.timeout(_DISCOVERY_LIMIT / 3):
                    await complete.wait()
                break
            except TimeoutError:
                _log.info("waiting for the sites; %s answered", ", ".join(sorted(found)) or "none")
    finally:
        await connection.unsubscribe_raw(subscription)
    return list(found.values())


async def _restore(connection: Connection, bucket: Bucket, sites: Iterable[str]) -> int:
    """Fill an empty state from the freshest copy; its term, 0 if there is none."""
    best: tuple[tuple[int, int], str, Bucket] | None = None
    for site in sites:
        copy = Bucket(connection, site, subjects.STATE_COPY_BUCKET, timeout=2.0)
        try:
            entry = await copy.get(_COPIED) if await copy.exists() else None
        except NearcastError as error:  # it has no store, or is away
            _log.debug("no copy of the state at %s: %s", site, error)
            continue
        if entry is not None:
            try:
                status: CopyStatus = decode(entry.payload, CopyStatus)
            except MalformedError as error:
                drop("copy of the state", site, error)
                continue
            if best is None or (status.term, status.revision) > best[0]:
                best = (status.term, status.revision), site, copy
    if best is None:
        return 0
    (term, _), site, copy = best

    async def write(key: str, value: bytes | None) -> None:
        try:
            await bucket.put(key, value or b"", expected=0)
        except ConflictError:
            _log.info("%s was restored by another coordinator", key)

    entries = await copy.read_all()
    await _in_parts([(key, e.payload) for key, e in entries.items() if key not in _NOT_COPIED], write)
    _log.warning("the state was lost; restored %d keys from its copy at %s, term %d", len(entries), site, term)
    return term
