"""How many workers a site may be told to start."""

from __future__ import annotations

from pathlib import Path
from types import NoneType

import pytest
from tests.system.conftest import PROCESSORS

from nearcast.domain.deployment import Deployment
from nearcast.domain.site import SiteSpec
from nearcast.domain.topic import TopicSpec
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import call
from nearcast.protocol.control import StartTopic
from nearcast.site.ports import free_ports
from nearcast.site.site import run_sites


async def test_more_workers_than_the_site_allows_are_refused_and_the_others_work_on(tmp_path: Path) -> None:
    (tmp_path / "limit_processors.py").write_text(PROCESSORS)
    site = SiteSpec("tokyo", "edge", port=free_ports(), max_workers=1)
    deployment = Deployment((site,), (TopicSpec("gps", ("tokyo",)),), ("limit_processors",))
    async with run_sites(deployment, tmp_path / "run", [str(tmp_path)]) as running:
        connection = await open_connection([site.url], name="test")
        try:
            workers = {name: process.pid for name, process in running["tokyo"].workers.items()}
            assert len(workers) == 1
            start = subjects.site_command("tokyo", "start")
            for n in range(20):
                with pytest.raises(NearcastError, match=rf"runs 1 workers, its `max_workers`; extra-{n} is refused"):
                    await call(connection, start, StartTopic(1, 1, TopicSpec(f"t{n}"), f"extra-{n}"), NoneType)
            (name,) = workers
            await call(connection, start, StartTopic(1, 1, TopicSpec("mov"), name), NoneType, timeout=60)
            assert {name: process.pid for name, process in running["tokyo"].workers.items()} == workers
        finally:
            await connection.close()
