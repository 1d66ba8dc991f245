"""What a broker refuses: a connection, with the reason in words that say what to do; a subject, counted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nearcast.nats.identity.credentials import Credentials

__all__ = [
    "RefusedError",
    "RefusedSubjects",
    "is_payload_limit",
    "is_refusal",
    "is_subscription_limit",
    "refusal_reason",
]

_log = logging.getLogger(__name__)
_VIOLATION = re.compile(r"permissions violation for (publish|subscription) to \"([^\"]+)\"", re.IGNORECASE)
_REFUSALS_KEPT = 1000


class RefusedError(NearcastError, PermissionError):
    """The broker does not let this user ask, or publish."""


class RefusedSubjects:
    """What a user may not publish or subscribe to, as the broker said. Subjects are in small letters: so nats-py is.

    counts: how often, by action and subject. subscriptions: how many it refused as more than the user may have, whose
    subjects it does not say. on_publication: called with the subject of each publication.
    """

    def __init__(self, user: str) -> None:
        self.user = user
        self.counts: dict[str, int] = {}
        self.subscriptions = 0
        self.on_publication: list[Callable[[str], None]] = []

    def note(self, error: str) -> None:
        """Take an error of the broker; only permission violations count."""
        if is_subscription_limit(error):
            self.subscriptions += 1
            _log.error("the broker refuses further subscriptions of %s: it has as many as it may have", self.user)
        if not (found := _VIOLATION.search(error)):
            return
        action, subject = found.groups()
        what = f"{action.lower()} {subject}"
        if len(self.counts) < _REFUSALS_KEPT or what in self.counts:
            self.counts[what] = self.counts.get(what, 0) + 1
        if self.counts.get(what) == 1:
            _log.warning("the broker refuses %s: %s may not", what, self.user)
        if action.lower() == "publish":
            for refused in list(self.on_publication):
                refused(subject.lower())

    @contextlib.contextmanager
    def awaited(self, subject: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done when the broker refuses what is published to a subject meanwhile."""
        refusal: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def refused(what: str) -> None:
            if what == subject.lower() and not refusal.done():
                refusal.set_result(None)

        self.on_publication.append(refused)
        try:
            yield refusal
        finally:
            self.on_publication.remove(refused)


def is_subscription_limit(error: str) -> bool:
    """Whether the broker says that a user has as many subscriptions as it may have."""
    return "maximum subscriptions" in error.lower()


def is_payload_limit(error: str) -> bool:
    """Whether the broker says that a message was larger than its sender may send. It closes the connection."""
    return "maximum payload" in error.lower()


def is_refusal(error: Exception) -> bool:
    """Whether the broker refuses the client, or the client the broker: trying again would not help."""
    text = str(error).lower()
    words = ("authorization violation", "authentication", "maximum account", "maximum connections")
    return isinstance(error, ssl.SSLError) or any(word in text for word in words)


def refusal_reason(error: Exception, credentials: Credentials | None) -> str:
    """Why a broker and a client do not trust each other, in words that say what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        how = "credentials name another authority" if credentials and credentials.ca else "there are no credentials"
        hint = "" if "expired" in error.verify_message else f"; {how}"
        return f"the broker's certificate is not accepted: {error.verify_message}{hint}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if "maximum" in str(error).lower():
        return f"the broker refuses more: {str(error).removeprefix('nats: ').strip()}"
    if credentials is None:
        return "the broker asks for credentials; give a file of `nearcast auth add` or set NEARCAST_CREDS"
    return (
        f"the broker refuses the credentials of {credentials.user}: they are revoked, expired or of another deployment"
    )
