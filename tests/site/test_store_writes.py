"""A store that failed to write is found by its log, once there is room."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nearcast.errors import NearcastError
from nearcast.site.store_writes import StoreWrites

LINE = "[ERR] JetStream stream '$G > S' critical write error: write 2.blk: no space left on device\n"


def test_only_failures_since_the_start_count(tmp_path: Path):
    log = tmp_path / "store.log"
    log.write_text(LINE)
    writes = StoreWrites("tokyo", log, tmp_path)
    writes.restarted()
    writes.check()
    with log.open("a") as file:
        file.write("[INF] all is well\n")
    writes.check()
    with log.open("a") as file:
        file.write(LINE)
    for _ in range(2):
        with pytest.raises(NearcastError, match="has room again"):
            writes.check()
    writes.restarted()
    writes.check()


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path):
    writes = StoreWrites("tokyo", tmp_path / "none.log", tmp_path)
    writes.restarted()
    writes.check()


def test_nothing_is_done_while_there_is_no_room_but_the_operator_is_told_once(tmp_path: Path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    log = tmp_path / "store.log"
    log.write_text(LINE)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 5 << 20}))
    writes = StoreWrites("tokyo", log, tmp_path)
    assert not writes.failed
    for _ in range(3):
        writes.check()
        assert writes.failed
    writes.restarted()
    assert not writes.failed
    (begins, ends) = (record.getMessage() for record in caplog.records)
    assert begins == (
        "the store of site tokyo cannot write: JetStream stream '$G > S' critical write error: write 2.blk: no space "
        f"left on device; {tmp_path} has 5.2 MB free, 16.8 MB are needed: make room, and it is restarted"
    )
    assert ends == "the store of site tokyo writes again"
