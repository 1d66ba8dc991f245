"""The demonstration as a new user runs it, short and without Spark; what it says is what is there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.system.test_cli import NEARCAST


async def test_the_demo_accounts_for_every_message_and_clears_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = await asyncio.create_subprocess_exec(
        *NEARCAST, "demo", "--duration", "6", "--act", "5", "--no-cluster", "--no-distance",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(240):
            out, err = (text.decode() for text in await process.communicate())
    finally:
        if process.returncode is None:
            process.terminate()  # it ends what it started
            await process.wait()
    assert process.returncode == 0, out + err
    assert "Console: http://127.0.0.1:" in out
    assert "Act 5: A latecomer" in out
    assert "alerts of 5 zones" in out
    assert "Nothing was lost, nothing came twice." in out
    assert "Traceback" not in err
    assert os.listdir(tmp_path) == ["nearcast-demo-logs"], "the logs that it names, and nothing else"
