"""The queue group of the processors is for workers: any other member would take publications away from them."""

from __future__ import annotations

import contextlib

import pytest
from tests.system.secured.conftest import Secured

from nearcast.nats import subjects
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


@pytest.mark.parametrize("user", ["car7", "service", "reader", "admin"])
async def test_no_client_joins_the_processors_but_it_hears_what_it_may(secured: Secured, user: str) -> None:
    own = subjects.publications("gps.car7")
    wide = own if user == "car7" else subjects.publications("gps.*")
    heard: list[bytes] = []
    async with secured.connected(user) as spy, secured.connected("car7") as car:
        for subject in {own, wide}:
            await spy.subscribe_raw(subject, lambda *parts: heard.append(b"stolen"), queue=subjects.PROCESSORS)
        await spy.subscribe_raw(wide, lambda subject, reply, payload, headers: heard.append(payload))
        expected = {f"subscription {subject}" for subject in (own, wide)}
        with contextlib.suppress(AssertionError):
            await until(lambda: set(spy.refusals.counts) == expected, 60)
        assert set(spy.refusals.counts) == expected
        car.send(own, b"", b'{"n": 5}', "")
        await car.flush()
        await until(lambda: bool(heard), 60)
        assert heard == [b'{"n": 5}']
