"""What other users of a site's machine can learn: no token of a connection, no file of the site."""

from __future__ import annotations

import asyncio
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.system.secured.conftest import Secured

from nearcast.site.servers import fetch_monitoring

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]


async def test_the_monitoring_port_tells_nothing_to_who_does_not_know_its_path(secured: Secured) -> None:
    """Its `connz?auth=1` has the token of every connection, which is the password of an MQTT device."""
    for site in secured.running.sites.values():
        address = f"http://127.0.0.1:{site.spec.monitor_port}"
        for path in ("", "connz?auth=1", "varz", "subsz", "accountz", "jsz", "healthz", "leafz", "gatewayz"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                await asyncio.to_thread(urllib.request.urlopen, f"{address}/{path}", timeout=10)
        assert (await fetch_monitoring(site.spec, "varz"))["server_name"] == site.spec.name


async def test_no_file_of_a_secured_site_can_be_read_by_others(secured: Secured) -> None:
    for site in secured.running.sites.values():
        files = files_below(site.run_directory)
        assert {"broker.conf", "store.conf", "broker.log", "store-index.sqlite"} <= {file.name for file in files}
        readable = [file for file in files if stat.S_IMODE(file.stat().st_mode) & 0o004]
        assert [str(file) for file in readable if file.stat().st_size] == []  # a lock has nothing in it


def files_below(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]
