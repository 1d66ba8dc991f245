"""The coordinators' state in a real store: compare-and-set, all of it at once, and nothing left of what was removed."""

from __future__ import annotations

import pytest

from nearcast.coordinator.state import CoordinatorState
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.kv import Bucket, ConflictError
from nearcast.nats.lease import Lease


async def test_two_views_of_the_state_do_not_overwrite_each_other_and_removed_keys_leave_nothing(city) -> None:
    async with city(names=("cloud",)) as c:
        connection = await open_connection([c.url("cloud")], name="test")
        try:
            one, other = [
                CoordinatorState(await Bucket(connection, "cloud", subjects.STATE_BUCKET).create(within=30.0))
                for _ in range(2)
            ]
            assert await one.read_all() == {}
            for n in range(2500):  # more than a page
                await one.write(f"client.c{n}", Lease("c", n))
            found = await other.read_all()
            assert set(found) == {f"client.c{n}" for n in range(2500)}
            assert found["client.c7"].sequence == one.revision_of("client.c7") == other.revision_of("client.c7")
            await other.write("client.c7", Lease("other", 7))
            with pytest.raises(ConflictError, match=r"client\.c7 of bucket nearcast was changed"):
                await one.write("client.c7", Lease("one", 7))
            for n in range(2500):
                await one.erase(f"client.c{n}")
            left = await one.read_all()
            assert list(left) == ["client.c7"]  # what the other wrote since stays
            await one.erase("client.c7")
            assert await other.read_all() == {}
            state = (await connection.jsm(prefix="$JS.cloud.API").stream_info("KV_nearcast")).state
            assert state.messages == 0
            assert await one.write("client.c7", Lease("again", 7)) > 0
        finally:
            await connection.close()
