"""Ed25519 keys in NATS's text form: a seed is secret, its public key is an identity."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

import nkeys

from nearcast.errors import InputError

__all__ = ["KeyPair", "new_key", "read_key"]

Kind = Literal["operator", "account", "user"]
_PREFIXES = {
    "operator": nkeys.PREFIX_BYTE_OPERATOR,
    "account": nkeys.PREFIX_BYTE_ACCOUNT,
    "user": nkeys.PREFIX_BYTE_USER,
}


@dataclass(frozen=True)
class KeyPair:
    """A key of one kind: `public` begins with O, A or U, `seed` with SO, SA or SU."""

    public: str
    seed: str

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes."""
        return bytes(nkeys.from_seed(self.seed.encode()).sign(data))

    def __repr__(self) -> str:
        return f"KeyPair({self.public})"  # never the seed: it would end in a log


def new_key(kind: Kind) -> KeyPair:
    """A new random key."""
    return read_key(nkeys.encode_seed(secrets.token_bytes(32), _PREFIXES[kind]).decode())


def read_key(seed: str) -> KeyPair:
    """The key of a seed."""
    try:
        public = nkeys.from_seed(seed.strip().encode()).public_key.decode()
    except Exception as error:  # nkeys raises several kinds; the seed itself must not be shown
        raise InputError(f"a key cannot be read: {type(error).__name__}; allowed: a seed such as SUA…") from None
    return KeyPair(public, seed.strip())
