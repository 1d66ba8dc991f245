"""Where a client says it is reaches the console, through another site's broker."""

from __future__ import annotations

import pytest
from tests.system.control import coordinator

import nearcast
from nearcast.errors import InputError
from nearcast.nats.connection import open_connection
from nearcast.testing import until
from nearcast.web.client_positions import ClientPositions


async def test_a_client_tells_its_position_and_takes_it_away_when_it_leaves(city) -> None:
    async with city(names=("tokyo", "cloud"), report_seconds=0.3) as c, coordinator(c):
        connection, positions = await open_connection([c.url("cloud")], name="console"), ClientPositions()
        try:
            await positions.follow(connection)
            await connection.flush()
            async with nearcast.connect(coordinator=c.url("tokyo"), name="car7", report_seconds=0.2) as client:
                client.position = (35.7, 139.8)
                await until(lambda: [one.position for one in positions.now()] == [(35.7, 139.8)])
                client.position = (34.7, 135.5)
                await until(lambda: [one.position for one in positions.now()] == [(34.7, 135.5)])
                for wrong in ((91, 0), (0, 181), (float("nan"), 0), "north", (1, 2, 3)):
                    with pytest.raises(InputError, match="allowed: latitude and longitude in degrees"):
                        client.position = wrong
                assert client.position == (34.7, 135.5)
            await until(lambda: positions.now() == [])
        finally:
            await connection.close()
