"""Digests of sets of messages: a count and a sum of hashes, the same in whatever order the messages are added."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["DIGEST_BITS", "add_digests", "content_hash", "id_hash"]

DIGEST_BITS = 64
_MASK = (1 << DIGEST_BITS) - 1


def content_hash(subject: bytes, message_id: bytes, payload: bytes) -> int:
    """64 bits of all that two replicas must agree on. No subject or id has the line break between the parts."""
    return int.from_bytes(blake2b(b"\n".join((subject, message_id, payload)), digest_size=8).digest(), "little")


def id_hash(message_id: bytes, payload: bytes) -> int:
    """64 bits of a message's id; of its payload when it has none. For who compares ids and trusts the rest."""
    return int.from_bytes(blake2b(message_id or payload, digest_size=8).digest(), "little")


def add_digests(one: int, other: int) -> int:
    """The digest of both sets. A sum, not an exclusive or: a message that is there twice does not vanish."""
    return (one + other) & _MASK
