"""Makes a client from what the user gives: brokers or a coordinator, a name, credentials, a spool."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING

from nearcast.client.arguments import check_arguments
from nearcast.client.client import Client
from nearcast.client.publication_spool import PublicationSpool
from nearcast.client.publishing import Publisher
from nearcast.client.quota import PublishQuota
from nearcast.client.session import Sessions
from nearcast.client.spooling import SpooledPublisher
from nearcast.codec import JSON, Codec
from nearcast.domain.names import check_name
from nearcast.errors import InputError, InputTypeError
from nearcast.nats.identity.credentials import given_credentials
from nearcast.nats.identity.tokens import tagged_limits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nearcast.client.subscription import Subscription
    from nearcast.coordinates import Coordinate
    from nearcast.nats.identity.credentials import Credentials
    from nearcast.protocol.control import Notice

__all__ = ["connect"]

_log = logging.getLogger(__name__)
_SPOOL_BYTES = 64 << 20
_LOCAL_BROKER = "nats://127.0.0.1:4222"


def connect(
    urls: str | Sequence[str] | None = None,
    *,
    coordinator: str | Sequence[str] | None = None,
    name: str | None = None,
    codec: Codec = JSON,
    timeout: float = 5.0,
    mobile: bool = False,
    coordinate: Coordinate | None = None,
    report_seconds: float = 5.0,
    spool: str | Path | None = None,
    credentials: str | Path | None = None,
) -> Client:
    """A client of the first broker that answers: `async with nearcast.connect(urls) as client`.

    urls: brokers; nats://127.0.0.1:4222 when neither these nor a coordinator are given. coordinator: instead of urls,
    any broker through which a coordinator can be asked; it gives this client a home, learns how it fares (each
    `report_seconds`) and may move it to a better one, without a gap. mobile: this device changes its place, so its
    coordinate is that of the nearest site plus its access delay. coordinate: it knows its place by other means.

    spool: a file in which publications with a write quorum are kept until their stores have them, at most 64 MiB. They
    are sent in order when stores can be reached again, by this process or by the next one with the same file.

    credentials: a file made by `nearcast auth add`, or the one that the environment variable NEARCAST_CREDS names. The
    client has the name of its user.
    """
    check_arguments("connect", locals())
    if not all(callable(getattr(codec, method, None)) for method in ("encode", "decode")):
        raise InputTypeError(f"connect: codec is {codec!r}; allowed: an object with the methods encode and decode")
    if urls is not None and coordinator is not None:
        raise InputError(
            f"connect takes urls or coordinator, not both: urls is {urls!r}, coordinator is {coordinator!r}; "
            "with a coordinator, it says which broker to connect to"
        )
    given = coordinator if coordinator is not None else urls if urls is not None else _LOCAL_BROKER
    addresses = [given] if isinstance(given, str) else list(given)
    if not addresses:
        raise InputError("urls is empty; name at least one broker, as in nats://127.0.0.1:4222")
    identity = given_credentials(credentials)
    if identity is not None:
        if name not in (None, identity.user):
            raise InputError(f"client name is {name!r}; allowed with these credentials: {identity.user}, their user")
        name = identity.user
    client_name = check_name(name or f"c{secrets.token_hex(6)}", "client")
    sessions = Sessions(client_name, addresses, timeout, identity)
    publisher = Publisher(sessions, codec)
    subscriptions: set[Subscription] = set()
    if spool is not None:
        publisher.spool = SpooledPublisher(sessions, PublicationSpool(spool, _SPOOL_BYTES))
    sessions.on_reconnect.append(publisher.forget_routes)
    if identity is not None:
        _keep_limits(identity, sessions, publisher)
    coordination = None
    if coordinator is not None:
        # A client without a coordinator does not pay for this.
        from nearcast.client.coordination import ClientCoordinate, Coordination

        position = ClientCoordinate(coordinate, mobile=mobile)
        coordination = Coordination(sessions, subscriptions, publisher.routes, position, report_seconds)
    return Client(sessions, publisher, subscriptions, codec, coordination)


def _keep_limits(identity: Credentials, sessions: Sessions, publisher: Publisher) -> None:
    """Publish no more than the credentials allow, and nothing for a while when the site says that it was too much."""
    limits = tagged_limits(identity.claims.nats.get("tags", []))
    if limits.messages_per_second >= 0 or limits.bytes_per_second >= 0:
        publisher.quota = PublishQuota(identity.user, limits)

    def noticed(notice: Notice) -> None:
        _log.warning("client %s: %s", identity.user, notice.reason)
        publisher.quota = publisher.quota or PublishQuota(identity.user, limits)
        publisher.quota.suspend(notice.reason, notice.seconds)

    sessions.on_notice = noticed
