"""Only the coordinator's user may tell a client where to go."""

from __future__ import annotations

import msgspec
import pytest
from tests.system.secured.conftest import Secured

import nearcast
from nearcast.auth.role_table import role_users
from nearcast.nats import subjects
from nearcast.nats.coordinator_rpc import call_coordinator
from nearcast.protocol.control import Rehome
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


async def test_a_client_moves_at_the_word_of_the_coordinator_alone(secured: Secured) -> None:
    file = secured.auth.credentials_file("car7", "main")
    command = subjects.client_command("car7")
    term = secured.coordinator.lease.term
    async with (
        nearcast.connect(coordinator=secured.running.url("cloud"), credentials=file, report_seconds=0.3) as car,
        secured.connected("admin") as admin,
    ):
        home = car.home
        other = "edge" if home == "cloud" else "cloud"
        rehome = Rehome(term, other, secured.running.url(other))  # all true, but for who says it
        for role, user, _ in role_users():
            if role not in ("coordinator", "store"):
                async with secured.connected(user) as connection:
                    connection.send(command, b"", msgspec.json.encode(rehome), "")
                    await until(lambda connection=connection: bool(connection.refusals.counts), 60)  # type: ignore[misc]
                    assert connection.refusals.counts == {f"publish {command}": 1}, role
        assert (car.home, car.coordination.rehoming.moves) == (home, 0)
        moved = await call_coordinator(admin, "client", "move", {"name": "car7", "to": [other]}, dict, 60)
        assert (moved["error"], car.home) == ("", other)
