"""The control plane's commands as a new user meets them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import urllib.request
from pathlib import Path

import pytest
from tests.system.control import coordinator
from tests.system.test_cli import run, serving
from tests.system.test_metrics import read as read_metrics

from nearcast.cli import companions
from nearcast.domain.topic import TopicSpec
from nearcast.site.ports import free_ports
from nearcast.testing import until


async def test_commands_against_a_running_coordinator(city):
    async with city(TopicSpec("gps", ("tokyo",), bound_ms=50), report_seconds=0.2) as c, coordinator(c):
        url = ("--url", c.url("tokyo"))
        code, out, _ = await run("site", "ls", *url, "--json")
        assert code == 0
        assert [row["site"] for row in json.loads(out)] == ["cloud", "osaka", "tokyo"]
        code, out, _ = await run("topic", "move", "gps", "--to", "osaka", *url)
        assert code == 0
        assert "done" in out
        code, out, _ = await run("topic", "info", "gps", *url, "--json")
        assert json.loads(out)["members"] == ["osaka/worker-0"]
        code, _, err = await run("topic", "move", "gps", "--to", "", *url)
        assert (code, err) == (2, "nearcast: site '' is not registered; there are: cloud, osaka, tokyo\n")
        for command in (("plan", "show"), ("plan", "apply", "--dry-run"), ("plan", "apply")):
            code, out, _ = await run(*command, *url)
            assert code == 0
            assert "Nothing to move." in out
        code, _, err = await run("plan", "show", "--dry-run", *url)  # it had no effect: `show` never executes a plan
        assert code == 2
        assert "No such option: --dry-run" in err
        code, out, _ = await run("coordinator", "status", *url, "--json")
        assert json.loads(out)["topics"] == 1
        code, _, err = await run("topic", "info", "rain", *url)
        assert code == 2
        assert err == "nearcast: topic 'rain' is not registered; `nearcast topic ls` shows those that are\n"
        code, out, _ = await run("channel", "subscriptions", *url)
        assert (code, out) == (0, "No client that registered with the coordinator subscribes to a channel.\n")
        code, out, _ = await run("client", "ls", *url)
        assert "No client is registered." in out
        code, out, _ = await run("topic", "rm", "gps", *url, "--json")
        assert (code, json.loads(out)) == (0, {"topic": "gps", "outcome": "removed"})


async def test_without_a_coordinator_the_commands_say_what_to_do(city):
    async with city() as c:
        code, _, err = await run("topic", "ls", "--url", c.url("tokyo"))
        assert code == 1
        # It may say before what it waits for.
        assert err.splitlines()[-1] == "nearcast: no coordinator answers; start one with: nearcast coordinator run"
        code, _, err = await run("site", "ls", "--url", "nats://127.0.0.1:1")
        assert code == 1
        assert "cannot connect to nats://127.0.0.1:1" in err


async def test_coordinator_run_leads_and_refuses_unknown_settings(city, tmp_path):
    settings = tmp_path / "settings.toml"
    settings.write_text("lease = 10.0\nautomatic = false\n")
    async with city(TopicSpec("gps", ("tokyo",)), report_seconds=0.2) as c:
        metrics = f"127.0.0.1:{free_ports(1)}"
        options = ("--settings", str(settings), "--metrics", metrics)
        async with serving("coordinator", "run", "--url", c.url("cloud"), *options):
            for _ in range(50):
                code, out, _ = await run("coordinator", "status", "--url", c.url("osaka"), "--json")
                if code == 0:
                    break
            assert json.loads(out)["term"] == 1
            families = await asyncio.to_thread(read_metrics, f"http://{metrics}/metrics")
            assert {"nearcast_build_info", "nearcast_coordinator_leading"} <= families.keys()
        settings.write_text("leese = 1.0\n")
        code, _, err = await run("coordinator", "run", "--url", c.url("cloud"), "--settings", str(settings))
        assert code == 2
        assert "leese is 1.0, an unknown key; allowed: period, lease" in err


async def test_up_with_a_console_is_ready_when_a_coordinator_answers(city, tmp_path, monkeypatch):
    """It was, a moment before: who typed a command then was told that no coordinator answers."""

    @contextlib.asynccontextmanager
    async def started(*arguments, **options):
        yield "Console: http://127.0.0.1:1"

    async def start(deployment) -> str:
        async with companions.running_companions(deployment, tmp_path, 0) as line:
            return line

    monkeypatch.setattr(companions, "_process", started)
    async with city(names=("cloud",)) as c:
        starting = asyncio.create_task(start(c.sites["cloud"].deployment))
        await asyncio.sleep(2.5)  # a command waits for a second
        assert not starting.done()
        async with coordinator(c):
            assert await starting == "Console: http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "ended with code -9"), (signal.SIGSTOP, "did not answer for 5 s and was killed")],
)
async def test_a_coordinator_and_a_console_of_up_that_die_or_hang_are_started_again(
    city, tmp_path, caplog, monkeypatch, number, reason
):
    """Nothing was said, and until `up` was started again every command was told that no coordinator answers."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(companions, "_HUNG_AFTER", 5.0)

    def companion(words: bytes) -> int:
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            if words in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
        raise AssertionError(f"no process runs {words!r}")

    async def answers() -> bool:
        code, _, _ = await run("site", "ls", "--url", c.url("cloud"))
        return code == 0 and "ok" in await asyncio.to_thread(health, line.split()[1])

    def health(console: str) -> str:
        with urllib.request.urlopen(f"{console}/health", timeout=60) as answer:
            return answer.read().decode()

    async with city(names=("cloud",), report_seconds=0.2) as c:
        deployment = c.sites["cloud"].deployment
        async with companions.running_companions(deployment, tmp_path, free_ports(1)) as line:
            assert line.startswith("Console: http://")
            for words in (b"coordinator\0run", b"web\0--url"):
                os.kill(companion(words), number)
            await until(lambda: caplog.text.count("is up again") >= 2, 120)
            await until(answers, 60)
    for name in ("coordinator", "console"):
        assert f"{name} {reason}; restarting in 0.1 s" in caplog.text
        assert f"{name} is up again" in caplog.text


async def test_profiling_a_worker_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "samples.csv"
    options = ("--out", str(out), "--k", "2", "--seconds", "1", "--processing-ms", "1", "2", "--json")
    code, said, err = await run("profile", "worker", "--runs", "2", *options)
    assert (code, err) == (0, "")
    assert json.loads(said) | {"overhead_ms": 0} == {
        "runs": 2, "measured_now": 2, "resumed_after": 0, "overhead_ms": 0,
    }  # fmt: skip
    code, said, _ = await run("profile", "worker", "--runs", "3", *options)
    assert code == 0
    assert json.loads(said)["measured_now"] <= 2
    lines = out.read_text().splitlines()
    assert lines[0] == "run,topic,rate,processing_ms,p90_ms"
    assert len({line.partition(",")[0] for line in lines[1:]}) >= 2
    out.write_text("a,b\n1,2\n")
    code, _, err = await run("profile", "worker", "--runs", "3", *options)
    assert code == 2
    assert "are needed to continue with it" in err
