"""Commands to a client, where the order of things matters. No network."""

from __future__ import annotations

import pytest

from nearcast.client.coordination.rehoming_executor import RehomingExecutor
from nearcast.client.session import Sessions
from nearcast.errors import NearcastError
from nearcast.protocol.control import Rehome


async def test_a_command_that_comes_while_the_client_closes_moves_it_nowhere() -> None:
    executor = RehomingExecutor(Sessions("car", [], 5.0), set(), list)
    await executor.stop()
    with pytest.raises(NearcastError, match="client car is closing"):
        await executor.rehome(Rehome(1, "osaka", "nats://osaka"))
    assert not executor.moving
