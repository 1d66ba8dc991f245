"""Signing keys change while others work: old tokens are refused, and nobody else drops."""

from __future__ import annotations

import pytest
from tests.system.secured.conftest import Secured

import nearcast
from nearcast import ConnectionLostError
from nearcast.auth.push import push_accounts
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import credentials_file, read_credentials
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.xdist_group("secured")]


async def test_after_a_finished_rotation_new_tokens_stay_and_old_ones_are_refused(secured: Secured) -> None:
    file, url = secured.auth.credentials_file("car7", "main"), secured.running.url("edge")
    old = read_credentials(file)
    kept = secured.running.folder / "kept.creds"
    kept.write_text(credentials_file(old.token, old.seed, old.ca))
    async with nearcast.connect(url, credentials=file) as early:
        secured.auth.rotate()
        await push_accounts(secured.auth, url)
        async with secured.connected("car7") as late, nearcast.connect(url, credentials=file) as client:
            drops: list[str] = []

            async def dropped() -> None:
                drops.append("late")

            late._disconnected_cb = dropped
            secured.auth.finish_rotation()
            await push_accounts(secured.auth, url)

            async def refused() -> bool:
                try:
                    await (await open_connection([url], name="x", credentials=read_credentials(kept))).close()
                except ConnectionLostError as error:
                    return "refuses the credentials of car7" in str(error)
                return False

            await until(refused, 60)
            # The client of before has connected again with the new token in its file; the others never dropped.
            for publisher in (early, client):
                receipt = await publisher.publish("gps.car7", {"n": 1}, timeout=60)
                assert sorted(receipt.stores) == ["cloud", "edge"]
            await secured.reported()
            assert late.is_connected
            assert drops == []
    secured.lost.clear()  # sites and coordinator have connected again with their new tokens
