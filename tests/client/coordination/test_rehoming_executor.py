"""Commands to a client, where the order of things matters. No network."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.client.coordination.rehoming_executor import RehomingExecutor
from nearcast.client.session import Sessions
from nearcast.errors import InputError, NearcastError
from nearcast.protocol.control import Rehome


async def test_a_command_that_comes_while_the_client_closes_moves_it_nowhere() -> None:
    executor = RehomingExecutor(Sessions("car", [], 5.0), set(), list)
    await executor.stop()
    with pytest.raises(NearcastError, match="client car is closing"):
        await executor.rehome(Rehome(1, "osaka", "nats://osaka"))
    assert not executor.moving


async def test_a_client_whose_credentials_have_expired_says_so_and_may_be_moved_later() -> None:
    executor = RehomingExecutor(ExpiredSessions(), set(), list)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(NearcastError, match="osaka: the credentials of car expired"):
            await asyncio.wait_for(executor.rehome(Rehome(0, "osaka", "nats://osaka")), 5)


class ExpiredSessions:
    """Those of a client whose credentials are refused before a broker is asked."""

    name, home, current = "car", "tokyo", None
    urls: tuple[str, ...] = ()

    async def open(self, urls: list[str]) -> None:
        raise InputError("the credentials of car expired")
