"""A client's dealings with the control plane, where the order of things matters. No network."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.client.presence import Presence
from nearcast.client.whereabouts import Whereabouts
from nearcast.errors import NearcastError
from nearcast.protocol.control import Rehome


class Old:
    """A connection that takes its time to close."""

    def __init__(self) -> None:
        self.closed = 0
        self.may_close = asyncio.Event()

    async def close(self) -> None:
        await self.may_close.wait()
        self.closed += 1


class Gone:
    name, home = "car", "tokyo"

    def _live(self) -> None:
        raise NearcastError("no connection any more")


async def test_a_connection_whose_closing_was_cancelled_is_closed_when_the_client_leaves() -> None:
    presence = Presence(Gone(), Whereabouts(), 5.0)  # type: ignore[arg-type]
    old = Old()
    presence._spare[old] = None  # type: ignore[index]
    moving = asyncio.create_task(presence._discard(old))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    old.may_close.set()
    await presence.stop()
    assert old.closed == 1
    assert presence._spare == {}


async def test_a_command_that_comes_while_the_client_leaves_moves_it_nowhere() -> None:
    presence = Presence(Gone(), Whereabouts(), 5.0)  # type: ignore[arg-type]
    await presence.stop()
    with pytest.raises(NearcastError, match="client car is closing"):
        await presence._rehome(Rehome(1, "osaka", "nats://osaka"))
    assert presence._moving == set()
