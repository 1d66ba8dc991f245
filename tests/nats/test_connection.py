"""Addresses that cannot be a broker's. No server runs."""

from __future__ import annotations

import pytest

from nearcast import InputError
from nearcast.nats.connection import open_connection


@pytest.mark.parametrize(
    "url", ["", "nats://", "nats://127.0.0.1:99999", "nats://127.0.0.1:0", "127.0.0.1:port", "http://127.0.0.1:4222"]
)
async def test_an_address_that_cannot_be_one_is_refused_at_once(url: str) -> None:
    with pytest.raises(InputError, match=r"the broker's address is .*; allowed: an address such as nats://"):
        await open_connection([url], name="test")
