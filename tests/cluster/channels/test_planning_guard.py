"""A channel that no driver can plan is refused, and does not keep the others from running. No Spark runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nearcast.cluster.channels.planning_guard import PlanningGuard
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.domain.channel import ChannelSpec
from nearcast.errors import InputError

SLOW = ChannelSpec("slow", "SELECT", created=1)
ENTERED: list[AbstractContextManager[None]] = []


@pytest.fixture(autouse=True)
def leave_all() -> Iterator[None]:
    yield
    while ENTERED:
        ENTERED.pop().__exit__(None, None, None)


def unfinished(folder: Path) -> None:
    """A driver whose plan takes too long, and that ends."""
    ended = threading.Event()
    guard = PlanningGuard(Warehouse(str(folder)), ended.set, noted_after=0.01, ended_after=0.2)
    planning = guard.planning(SLOW)
    ENTERED.append(planning)  # it never leaves it
    planning.__enter__()
    assert ended.wait(30)


def test_a_channel_that_three_drivers_did_not_finish_is_refused(tmp_path: Path) -> None:
    for _ in range(3):
        unfinished(tmp_path)
    guard = PlanningGuard(Warehouse(str(tmp_path)))
    with pytest.raises(InputError, match="channel slow: 3 drivers did not finish planning"), guard.planning(SLOW):
        pass
    with guard.planning(ChannelSpec("slow", "SELECT", created=2)):  # added anew
        pass
    with guard.planning(ChannelSpec("other", "SELECT", created=1)):
        pass


def test_who_finishes_a_plan_is_not_blamed_for_earlier_ends(tmp_path: Path) -> None:
    for _ in range(2):
        unfinished(tmp_path)
    with PlanningGuard(Warehouse(str(tmp_path))).planning(SLOW):
        pass
    unfinished(tmp_path)
    with PlanningGuard(Warehouse(str(tmp_path))).planning(SLOW):
        pass


def test_a_file_that_is_none_is_no_reason_to_refuse_anything(tmp_path: Path) -> None:
    (tmp_path / "unfinished-plans.json").write_bytes(b"\xff[")
    with PlanningGuard(Warehouse(str(tmp_path))).planning(SLOW):
        pass
