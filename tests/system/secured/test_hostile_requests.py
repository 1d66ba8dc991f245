"""Requests and publications that were made to hurt, from users who may send them."""

from __future__ import annotations

import asyncio

import pytest
from tests.system.secured.conftest import Secured

import nearcast
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.rpc import call
from nearcast.nats.stamp import header_block, reason_of
from nearcast.protocol.services import (
    ConfirmAnswer,
    ConfirmRequest,
    HistoryPage,
    HistoryRequest,
    TopicsAnswer,
    TopicsRequest,
)
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


async def test_conditions_of_a_megabyte_are_refused_and_the_agent_goes_on(secured: Secured) -> None:
    """Four of them blocked an agent for five seconds."""
    wide = ["or", *(["eq", "n", "x" * 30] for _ in range(20_000))]
    deep: list[object] = ["eq", "n", 1]
    for _ in range(200):
        deep = ["not", deep]
    text = ["eq", "n", "x" * 1_000_000]
    subject = f"{subjects.history('edge', 'read')}.{subjects.history_scope('gps.car7')}"
    async with secured.connected("car7") as car:
        for where in (wide, deep, text):
            asked = HistoryRequest("gps.car7", where=where)
            found = await asyncio.gather(
                *(call(car, subject, asked, HistoryPage, timeout=60, encoding="msgpack") for _ in range(4)),
                return_exceptions=True,
            )
            assert all(isinstance(one, InputError) for one in found), found
            assert "the condition is" in str(found[0])
        assert car.is_connected
    await secured.reported()
    assert not secured.lost


async def test_a_topic_of_three_hundred_characters_is_processed_and_its_failure_is_a_dead_letter(
    secured: Secured,
) -> None:
    """It was lost without a trace: its name was too long for a file."""
    topic = f"gps.{'x' * 296}"
    heard: dict[str, list[tuple[bytes, bytes]]] = {}

    def note(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        heard.setdefault(subject, []).append((payload, headers))

    notifications, letters = subjects.notifications(topic), subjects.dead_letters(topic)
    async with secured.connected("service") as service:
        await service.subscribe_raw(notifications, note)
        await service.subscribe_raw(letters, note)
        await service.flush()
        for n, payload in enumerate((b'{"n": 1}', b'{"m": 1}')):
            block = header_block(f"service~a:edge:{1_700_000_000_000_000 + n}:{n + 1}".encode())
            service.send(subjects.publications(topic), block, payload, "")
        await until(lambda: len(heard) == 2, 60)
        assert heard[notifications][0][0] == b'{"n":1}'
        payload, headers = heard[letters][0]
        assert payload == b'{"m": 1}'
        assert "KeyError" in reason_of(headers)


async def test_nobody_but_the_parts_of_a_site_can_forge_an_acknowledgement(secured: Secured) -> None:
    """Even who knows the inbox of another client's publication."""
    file = secured.auth.credentials_file("car7", "main")
    forged = b'{"stream": "gps_2e_2a", "domain": "forged", "seq": 1}'
    async with nearcast.connect(secured.running.url("edge"), credentials=file) as client:
        inbox = client._sessions.current.acknowledgements._inbox
        tokens = [str(n) for n in range(1, 4)]
        for user in ("service", "reader", "admin"):
            async with secured.connected(user) as connection:
                for token in tokens:
                    connection.send(f"{inbox}.{token}", b"", forged, "")
                expected = {f"publish {inbox}.{token}".lower(): 1 for token in tokens}
                await until(lambda connection=connection: len(connection.refusals.counts) == 3, 60)  # type: ignore[misc]
                assert connection.refusals.counts == expected, user
        receipts = [await client.publish("gps.car7", {"n": n}) for n in range(3)]
        assert {tuple(sorted(receipt.stores)) for receipt in receipts} == {("cloud", "edge")}


async def test_requests_of_one_user_leave_room_for_those_of_others(secured: Secured) -> None:
    """An agent answers a thousand at the same time; one device could have them all."""
    async with secured.connected("admin") as admin:
        await Catalog(admin, "cloud").prepare()
    confirm = subjects.channels_service("edge", "confirm")  # it waits for seconds
    async with secured.connected("car7") as car, secured.connected("service") as other:
        asked = [
            asyncio.create_task(call(car, confirm, ConfirmRequest(1 << 50), ConfirmAnswer, timeout=60))
            for _ in range(1200)
        ]
        await asyncio.sleep(0)
        await car.flush()
        lookup = subjects.topics_lookup("edge")
        answer = await call(other, lookup, TopicsRequest("gps.*"), TopicsAnswer, timeout=60)
        assert [topic.name for topic in answer.topics] == ["gps.*"]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert any("busy: 250 other requests of car7 are being answered" in str(one) for one in found)
        assert not any("busy: 1000" in str(one) for one in found)
