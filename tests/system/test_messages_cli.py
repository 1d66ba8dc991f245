"""Publish, subscribe, ask for the past and measure from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator

from nats.aio.msg import Msg
from tests.system.test_cli import NEARCAST, run

import nearcast
from nearcast.cli import bench
from nearcast.domain.topic import TopicSpec


@contextlib.asynccontextmanager
async def subscribed(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`nearcast sub`, once it has said that it is subscribed."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*NEARCAST, "sub", *arguments, **pipes)
    try:
        async with asyncio.timeout(60):
            assert process.stderr is not None
            assert (await process.stderr.readline()).startswith(b"Subscribed to ")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_bytes_that_are_no_text_are_sent_as_they_are(city) -> None:
    async with city(TopicSpec("raw", (), ("tokyo",), 1), names=("tokyo",)) as c:
        for data, given in ((b"\xff\xfe", b""), (b"-", b"\xfe\r\xff\nlast")):
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
            process = await asyncio.create_subprocess_exec(
                *NEARCAST, "pub", "raw", data, "--url", c.url("tokyo"), **pipes
            )
            out, err = await asyncio.wait_for(process.communicate(given), 60)
            assert process.returncode == 0, err.decode()
            assert out.count(b"Published ") == (2 if given else 1)
        async with nearcast.connect(c.url("tokyo")) as client:
            kept = [message.payload async for message in client.history("raw")]
            assert kept == [b"\xff\xfe", b"\xfe\r\xff", b"last"]
            heard = asyncio.Event()

            async def answer(message: Msg) -> None:
                if message.data == b"\xff":
                    heard.set()
                await message.respond(b"ok")

            await client.connection.subscribe("echo", cb=answer)
            await client.flush()
            process = await asyncio.create_subprocess_exec(
                *NEARCAST, "request", "echo", b"\xff", "--url", c.url("tokyo")
            )
            assert await asyncio.wait_for(process.wait(), 60) == 0
            assert heard.is_set()
    assert (await run("request", b"a.\xff"))[::2] == (
        2, "nearcast: subject is 'a.\\udcff'; allowed: printable characters, such as api.coordinator.status\n"
    )  # fmt: skip


async def test_pub_sub_history_request_and_bench(city) -> None:
    async with city(TopicSpec("gps.*", ("tokyo",), ("tokyo",), 1), names=("tokyo",)) as c:
        url = ("--url", c.url("tokyo"))
        async with subscribed("gps.*", *url) as listener:
            code, out, err = await run("pub", "gps.car7", '{"n": 1}', "--count", "2", "--json", *url)
            assert code == 0, err
            receipts = [json.loads(line) for line in out.splitlines()]
            assert [receipt["stores"] for receipt in receipts] == [["tokyo"], ["tokyo"]]
            assert listener.stdout is not None
            line = (await listener.stdout.readline()).decode()
            assert line.startswith("[#1] gps.car7  ")
            assert '"n":1' in line
            listener.send_signal(signal.SIGINT)
            _, err_left = await asyncio.wait_for(listener.communicate(), 30)
            assert listener.returncode == 0
            assert b"Traceback" not in err_left
        commands = [
            ("history", "gps.car7", "--publications", "--raw", "--since", "1h"),
            ("sub", "gps.car7", "--last", "1", "--count", "1", "--json"),
            ("request", "$SRV.PING.nearcast-agent", "--json"),
            ("bench", "--messages", "200", "--json"),
            ("history", "gps.car7", "--since", "yesterday"),
            ("request", "nobody.here"),
            ("bench", "--messages", "5", "--size", "2000000"),
        ]
        done = [await run(*command, *url) for command in commands]
    past, replayed, answer, bench, mistake, silence, refused = done
    assert past[:2] == (0, '{"n": 1}\n{"n": 1}\n')
    assert json.loads(json.loads(replayed[1])["payload"])["n"] == 1
    assert json.loads(json.loads(answer[1])["payload"])["name"] == "nearcast-agent"
    figures = json.loads(bench[1])
    assert figures["messages"] == 200
    assert 0 < figures["latency_p50_ms"] <= figures["latency_p99_ms"]
    assert mistake[0] == 2
    assert "--since is 'yesterday'; allowed: a time such as" in mistake[2]
    assert silence[0] == 1
    assert "nobody answers requests on nobody.here" in silence[2]
    assert refused[0] == 1
    assert "the broker takes at most 1048576" in refused[2]
    assert "Traceback" not in refused[2]  # of its subscribers


async def test_bench_waits_for_slow_publishers(city, monkeypatch) -> None:
    """At one message in ten seconds it gave up: none had come for ten."""
    monkeypatch.setattr(bench, "_STALLED_SECONDS", 1.0)
    async with city(names=("tokyo",)) as c:
        figures = await bench._measure(3, 10, 1, 1, 0.5, c.url("tokyo"))
    assert figures["received_per_s"] == round(3 / 4)
