"""JSON web tokens as nats-server reads them: base64url of JSON, signed with Ed25519."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from nearcast.errors import InputError
from nearcast.nats.stamp import RESERVED_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nearcast.nats.identity.keys import KeyPair

__all__ = [
    "UNLIMITED",
    "AccessLimits",
    "Claims",
    "account_limits",
    "account_token",
    "limit_tags",
    "operator_token",
    "read_token",
    "tagged_limits",
    "tagged_role",
    "user_limits",
    "user_token",
]

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_Quota = Annotated[int, Meta(ge=-1, description="-1 for no limit, or a number")]


_Rate = Annotated[float, Meta(ge=-1, description="-1 for no limit, or a number")]


class AccessLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tenant or a user may use; -1: as much as there is. payload: bytes of the data of one message.

    Rates (and the connections of a user) are enforced by each site, all else by brokers and stores.
    """

    connections: _Quota = -1
    subscriptions: _Quota = -1
    payload: _Quota = -1
    stored_bytes: _Quota = -1
    streams: _Quota = -1
    messages_per_second: _Rate = -1
    bytes_per_second: _Rate = -1


UNLIMITED = AccessLimits()


class Claims(msgspec.Struct, frozen=True):
    """A decoded token. expires: seconds since 1970, 0 for never."""

    name: str
    subject: Annotated[str, Meta()] = msgspec.field(name="sub")
    issuer: str = msgspec.field(name="iss")
    issued: int = msgspec.field(name="iat")
    expires: int = msgspec.field(name="exp", default=0)
    nats: dict[str, Any] = {}


# What a server does not enforce stands in the tags of a token, signed like the rest.
_TAGS = {"rate": "messages_per_second", "bytes": "bytes_per_second", "connections": "connections"}


def limit_tags(limits: AccessLimits) -> list[str]:
    """The tags of a token that say what sites enforce."""
    return [f"{tag}:{value}" for tag, name in _TAGS.items() if (value := getattr(limits, name)) >= 0]


def tagged_limits(tags: Iterable[str]) -> AccessLimits:
    """What the tags of a token say; those that cannot be read are no limit."""
    found: dict[str, float] = {}
    for tag in tags:
        kind, _, value = str(tag).partition(":")
        with contextlib.suppress(ValueError):
            if kind in _TAGS and 0 <= (number := float(value)) < math.inf:
                found[_TAGS[kind]] = int(number) if kind == "connections" else number
    return AccessLimits(**found)  # type: ignore[arg-type]


def account_limits(claims: Claims) -> AccessLimits:
    """What the token of a tenant says."""
    held = claims.nats["limits"]
    rates = tagged_limits(claims.nats.get("tags", []))
    return AccessLimits(
        held["conn"], held["subs"], _of_data(held["payload"]), held["disk_storage"], held["streams"],
        rates.messages_per_second, rates.bytes_per_second,
    )  # fmt: skip


def user_limits(claims: Claims) -> AccessLimits:
    """What the token of a user says."""
    nats = claims.nats
    own = tagged_limits(nats.get("tags", []))
    return msgspec.structs.replace(own, subscriptions=nats.get("subs", -1), payload=_of_data(nats.get("payload", -1)))


def _of_message(data: int) -> int:
    """The bytes of a message with so many bytes of data, as a broker counts them."""
    return data + RESERVED_BYTES if data >= 0 else -1


def _of_data(message: int) -> int:
    return max(message - RESERVED_BYTES, 0) if message >= 0 else -1


def tagged_role(tags: Iterable[str]) -> str:
    """The role of a user by the tags of its token."""
    return next((str(tag).removeprefix("role:") for tag in tags if str(tag).startswith("role:")), "")


def operator_token(key: KeyPair, name: str, signing_keys: list[str], system_account: str) -> str:
    """The operator signs itself, and names the keys that may sign accounts."""
    body = {"signing_keys": signing_keys, "system_account": system_account, "type": "operator", "version": 2}
    return _token(key, name, key.public, body)


def account_token(
    signer: KeyPair,
    account: str,
    name: str,
    signing_keys: list[str],
    revocations: dict[str, int],
    limits: AccessLimits,
    *,
    stores: bool,
) -> str:
    """An account. revocations: users by public key, and the second up to which their tokens are void."""
    stored = (limits.stored_bytes, limits.streams, -1) if stores else (0, 0, 0)
    body = {
        "limits": {
            "subs": limits.subscriptions,
            "data": -1,
            "payload": _of_message(limits.payload),
            "imports": -1,
            "exports": -1,
            "wildcards": True,
            "conn": limits.connections,
            "leaf": -1,
            "mem_storage": stored[0],
            "disk_storage": stored[0],
            "streams": stored[1],
            "consumer": stored[2],
        },
        "signing_keys": signing_keys,
        "revocations": revocations,
        "default_permissions": {"pub": {}, "sub": {}},
        "tags": limit_tags(limits),
        "type": "account",
        "version": 2,
    }
    return _token(signer, name, account, body)


def user_token(
    signer: KeyPair,
    account: str,
    user: str,
    name: str,
    *,
    publish: list[str],
    subscribe: list[str],
    limits: AccessLimits,
    tags: list[str],
    expires: int = 0,
    mqtt: bool = False,
    leaf_node: bool = False,
    queues_denied: Sequence[str] = (),
) -> str:
    """A user. mqtt: the token itself is the password of an MQTT device, and good for nothing else.

    leaf_node: it is a server, and connects as no client; nobody else connects as a leaf node, which would hear what
    others subscribe to and have no rate.
    queues_denied: `subject queue` pairs that it may not subscribe to, although it may to the subject alone.
    """
    listens = {"allow": subscribe} if subscribe else {"deny": [">"]}
    if subscribe and queues_denied:
        listens["deny"] = list(queues_denied)
    body: dict[str, Any] = {
        "issuer_account": account,
        "pub": {"allow": publish} if publish else {"deny": [">"]},
        "sub": listens,
        "subs": limits.subscriptions,
        "data": -1,
        "payload": _of_message(limits.payload),
        "tags": [*tags, *limit_tags(limits)],
        "allowed_connection_types": ["LEAFNODE"] if leaf_node else ["STANDARD", "WEBSOCKET"],
        "type": "user",
        "version": 2,
    }
    if mqtt:
        body |= {"bearer_token": True, "allowed_connection_types": ["MQTT", "MQTT_WS"]}
    return _token(signer, name, user, body, expires)


def read_token(token: str) -> Claims:
    """What a token says. Its signature is the server's to check."""
    try:
        body = token.split(".")[1]
        return msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=Claims)
    except (IndexError, ValueError, RecursionError) as error:
        raise InputError(f"not a token of NATS: {error}") from None


def _token(signer: KeyPair, name: str, subject: str, nats: dict[str, Any], expires: int = 0) -> str:
    claims: dict[str, Any] = {
        "jti": "",
        "iat": int(time.time()),
        "iss": signer.public,
        "name": name,
        "sub": subject,
        "nats": nats,
    }
    if expires:
        claims["exp"] = expires
    digest = hashlib.new("sha512_256", msgspec.json.encode(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = f"{_encode(_HEADER)}.{_encode(claims)}"
    return f"{signed}.{_base64url(signer.sign(signed.encode()))}"


def _encode(value: dict[str, Any]) -> str:
    return _base64url(msgspec.json.encode(value))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
