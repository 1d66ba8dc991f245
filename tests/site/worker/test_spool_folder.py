"""One worker has the folder of its spools; the next waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nearcast import NearcastError
from nearcast.site.worker.spool_folder import sole_user


async def test_the_next_worker_waits_until_the_one_before_has_ended(tmp_path: Path) -> None:
    order = []

    async def second() -> None:
        async with sole_user(tmp_path / "spools"):
            order.append("second")

    async with sole_user(tmp_path / "spools"):
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.2)
        order.append("first")
    await waiting
    assert order == ["first", "second"]


async def test_one_that_waits_in_vain_says_for_what(tmp_path: Path) -> None:
    async with sole_user(tmp_path):
        with pytest.raises(NearcastError, match="used by another worker"):
            async with sole_user(tmp_path, within=0.0):
                pass
