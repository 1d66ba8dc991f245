"""Keys and certificates change or expire while others work: clear errors, and no downtime for the rest."""

from __future__ import annotations

import pytest
from tests.system.secured.conftest import Secured

import nearcast
from nearcast import ConnectionLostError
from nearcast.auth.certificates import make_certificate
from nearcast.auth.push import push_accounts
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import credentials_file, read_credentials
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


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


async def test_an_expired_certificate_is_named_and_whoever_is_connected_stays(secured: Secured) -> None:
    folder = secured.auth.ca_file.parent
    async with secured.connected("car7") as connected:
        drops: list[str] = []

        async def dropped() -> None:
            drops.append("car7")

        connected._disconnected_cb = dropped
        make_certificate(folder, "edge", ["127.0.0.1"], days=-0.001)
        try:
            await until(lambda: expiry_is_named(secured), 60)
            await connected.flush(timeout=60)
            await secured.reported()
            async with secured.connected("car7", "cloud") as elsewhere:
                assert elsewhere.is_connected
        finally:
            make_certificate(folder, "edge", ["127.0.0.1"])

        async def accepted() -> bool:
            try:
                await (await secured.open("car7")).close()
            except ConnectionLostError:
                return False
            return True

        await until(accepted, 60)
        assert connected.is_connected
        assert drops == []


async def expiry_is_named(secured: Secured) -> bool:
    """Whether a new connection to the edge is told that the certificate has expired."""
    try:
        await (await secured.open("car7")).close()
    except ConnectionLostError as error:
        return "certificate has expired" in str(error)
    return False
