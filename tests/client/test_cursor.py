"""Where a subscriber stopped: what was read is never read again, what was not always is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nearcast import InputError
from nearcast.client.cursor import Cursor, cursor_path
from nearcast.message import Message
from nearcast.nats.stamp import header_block
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import until

HERE = {"t": {"x": 0.0}}


def message(n: int) -> Message:
    return Message("t", b"", header_block(b"p~aaaaa:home:%d:%d" % (n, n)))


def saved(path: Path, *given: int, received: int, discard: bool = False) -> Cursor:
    """A process gets these messages of those that came, asks for one more and ends; the next process begins."""
    cursor = Cursor(path, "t")
    for n in given:
        cursor.given(message(n))
    if discard:
        cursor.discard()
    cursor.given(None)
    cursor.save(HERE, received, received - len(given))
    return Cursor(path, "t")


def test_the_next_process_knows_what_was_read(tmp_path: Path) -> None:
    state = saved(tmp_path / "c", 1, 2, 3, received=3).state
    assert state is not None
    assert sorted(state.recent) == [b"p~aaaaa:home:%d:%d" % (n, n) for n in (1, 2, 3)]


def test_a_message_whose_reader_failed_comes_again(tmp_path: Path) -> None:
    state = saved(tmp_path / "c", 1, 2, received=2, discard=True).state
    assert state is not None
    assert state.recent == [b"p~aaaaa:home:1:1"]


def test_the_position_does_not_pass_what_waits_to_be_read(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "c", "t")
    cursor.save(HERE, 0, 0)
    begun = Cursor(tmp_path / "c", "t").state
    cursor.save(HERE, 5, 5)  # five came, none was read
    waiting = Cursor(tmp_path / "c", "t").state
    assert begun is not None
    assert waiting is not None
    assert waiting.read_until == begun.read_until
    for n in range(5):
        cursor.given(message(n))
    cursor.given(None)
    cursor.save(HERE, 5, 0)
    done = Cursor(tmp_path / "c", "t").state
    assert done is not None
    assert done.read_until["t"]["x"] > begun.read_until["t"]["x"]


class Clock:
    """This machine's clock, which can be set; seconds pass as they do."""

    def __init__(self) -> None:
        self.seconds, self.set_by = 0.0, 0.0

    def time_ns(self) -> int:
        return int((1.8e9 + self.seconds + self.set_by) * 1e9)

    def monotonic_ns(self) -> int:
        return int(self.seconds * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("nearcast.client.cursor.time", clock)
    return clock


def stopped_ago(cursor: Cursor) -> float:
    ago = cursor.stopped_ago("t")
    assert ago is not None
    return ago["x"]


@pytest.mark.parametrize("jump", [-3600.0, 0.0, 3600.0])
@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "between processes"])
@pytest.mark.parametrize("home_known", [True, False])
def test_no_jump_of_the_clock_makes_the_time_since_the_last_read_shorter(
    clock: Clock, tmp_path: Path, jump: float, running: bool, home_known: bool
) -> None:
    """A clock that was set back while nothing was read made it nothing, and what came meanwhile was missed."""

    def home_us() -> int:
        return int((1.8e9 + clock.seconds + 7) * 1e6)

    first = Cursor(tmp_path / "c", "t")
    if home_known:
        first.note_home_time(home_us())
    clock.seconds += 5
    clock.set_by += jump if running else 0.0
    first.save(HERE, 0, 0)
    clock.seconds += 100
    clock.set_by += 0.0 if running else jump
    second = Cursor(tmp_path / "c", "t")
    if home_known:
        second.note_home_time(home_us())
    assert stopped_ago(second) >= 100 - 1e-3
    if home_known and jump <= 0:
        assert stopped_ago(second) == pytest.approx(100)


def test_a_clock_that_is_behind_the_cursor_has_all_read_that_is_kept(clock: Clock, tmp_path: Path) -> None:
    Cursor(tmp_path / "c", "t").save(HERE, 0, 0)
    clock.set_by = -3600
    assert stopped_ago(Cursor(tmp_path / "c", "t")) == pytest.approx(1.8e9 - 3600)


def test_a_cursor_of_another_topic_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "c", 1, received=1)
    with pytest.raises(InputError, match="is of topic t, not of other"):
        Cursor(tmp_path / "c", "other")
    (tmp_path / "c").write_bytes(b"no cursor")
    with pytest.raises(InputError, match="cannot be used"):
        Cursor(tmp_path / "c", "t")


def test_names_are_files_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert cursor_path("dashboard") == tmp_path / "nearcast" / "cursors" / "dashboard"
    assert cursor_path(tmp_path / "c") == tmp_path / "c"
    with pytest.raises(InputError):
        cursor_path("../dashboard")


async def test_a_disk_that_fails_does_not_end_the_saving(tmp_path: Path) -> None:
    cursor = Cursor(tmp_path / "folder" / "c", "t")
    (tmp_path / "folder").rmdir()
    saving = asyncio.create_task(cursor.run(lambda: HERE, lambda: (0, 0)))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(saving), 0.3)
    (tmp_path / "folder").mkdir()
    await until((tmp_path / "folder" / "c").exists)
    await cancel_and_wait(saving)


async def test_a_save_that_was_late_does_not_replace_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has waited for a thread while the subscription was closed."""
    cursor, late = Cursor(tmp_path / "c", "t"), asyncio.Event()
    to_thread = asyncio.to_thread

    async def wait_for_a_thread(*work: Any) -> None:
        late.set()
        cursor.given(message(1))
        cursor.given(None)
        cursor.save(HERE, 1, 0)
        await to_thread(*work)
        late.clear()

    monkeypatch.setattr(asyncio, "to_thread", wait_for_a_thread)
    saving = asyncio.create_task(cursor.run(lambda: HERE, lambda: (1, 1)))
    await late.wait()
    await until(lambda: not late.is_set())
    await cancel_and_wait(saving)
    state = Cursor(tmp_path / "c", "t").state
    assert state is not None
    assert state.recent == [b"p~aaaaa:home:1:1"]
