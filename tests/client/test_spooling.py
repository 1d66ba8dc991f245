"""A spool on a disk that fails now and then. No network."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.client.acknowledgements import QuorumPublication, Receipt
from nearcast.client.publication_spool import PublicationSpool
from nearcast.client.spooling import SpooledPublisher
from nearcast.nats.refusals import RefusedError
from nearcast.testing import until


class Stores:
    """A session whose publications are acknowledged at once."""

    is_connected = True

    async def send(self, publication: QuorumPublication, *_: Any) -> asyncio.Future[Receipt]:
        answered: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        answered.set_result(Receipt(publication.id, ("a",)))
        return answered


class FailingSpool(PublicationSpool):
    """problems: raised one after the other by the next changes and syncs."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1 << 20)
        self.problems: list[OSError] = []
        self.synced = 0

    def done(self, message_id: str) -> None:
        if self.problems:
            raise self.problems.pop()
        super().done(message_id)

    def sync(self) -> None:
        if self.problems:
            raise self.problems.pop()
        self.synced += 1


def publication(n: int) -> QuorumPublication:
    return QuorumPublication(f"p~aaaaa:home:{n}:{n}", "t", "pub.t", 1, b"{}")


def publisher(spool: PublicationSpool) -> SpooledPublisher:
    stores = Stores()
    sessions: Any = SimpleNamespace(current=SimpleNamespace(acknowledgements=stores), connection=lambda: stores)
    return SpooledPublisher(sessions, spool)


async def test_a_failed_sync_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.client.spooling._SYNC_SECONDS", 0.0)
    spool = FailingSpool(tmp_path / "spool")
    spooled = publisher(spool)
    await (await spooled.publish(publication(1), frozenset()))
    spool.problems = [OSError(errno.EIO, os.strerror(errno.EIO))]
    spooled.start()
    await until(lambda: spool.synced > 0)
    await spooled.stop()


async def test_who_published_hears_of_the_stores_though_the_disk_is_full(tmp_path: Path) -> None:
    spool = FailingSpool(tmp_path / "spool")
    spooled = publisher(spool)
    receipt = await spooled.publish(publication(1), frozenset())
    spool.problems = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
    assert (await asyncio.wait_for(receipt, 5)).stores == ("a",)
    await spooled.stop()


async def test_what_may_not_be_published_leaves_the_spool(tmp_path: Path) -> None:
    """It would keep all that comes behind it from its stores."""
    spool = PublicationSpool(tmp_path / "spool", 1 << 20)
    spooled = publisher(spool)

    async def refuse(*_: Any) -> asyncio.Future[Receipt]:
        answered: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        answered.set_exception(RefusedError("topic t: car may not publish it"))
        return answered

    spooled._sessions.current.acknowledgements.send = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(RefusedError, match="topic t: car may not publish it"):
        await asyncio.wait_for(await spooled.publish(publication(1), frozenset()), 5)
    assert spooled.waiting == 0
    await spooled.stop()
