"""The processor of every topic: makes as many notifications as a publication asks for, and notes each call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nearcast.lab.chaos.ledger import LedgerFile
from nearcast.message import Message
from nearcast.processors import SpoolView, processor

__all__ = ["LEDGER_VARIABLE", "SITE_VARIABLE", "note_and_echo"]

LEDGER_VARIABLE, SITE_VARIABLE = "NEARCAST_CHAOS_LEDGER", "NEARCAST_CHAOS_SITE"
_ledgers: dict[int, LedgerFile] = {}


@processor(">", spool=1, timeout=30.0)
def note_and_echo(message: Message, spool: SpoolView) -> Iterator[dict[str, Any]]:
    """One notification for each of `count`, under the publication's own name and number."""
    data = message.data
    site = os.environ.get(SITE_VARIABLE, "")
    ledger = _ledgers.get(os.getpid())
    if ledger is None:
        path = Path(os.environ[LEDGER_VARIABLE]) / f"processor-{site}-{os.getpid()}.jsonl"
        ledger = _ledgers[os.getpid()] = LedgerFile(path)
    ledger.note(
        "processed",
        publisher=data["publisher"],
        n=data["n"],
        topic=message.topic,
        site=site,
        worker=os.getppid(),
        late=message.late,
        attempt=message.attempt,
    )
    for part in range(data["count"]):
        yield {"publisher": data["publisher"], "n": data["n"], "part": part}
