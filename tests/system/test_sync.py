"""The synchronous client, against real sites that run in the event loop of the test."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nearcast
from nearcast.domain.topic import TopicSpec


class Reading(msgspec.Struct):
    n: int


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run what waits in a thread of its own, as a script does; the sites go on in this one."""
    async with asyncio.timeout(60):
        return await asyncio.to_thread(work)


async def test_publish_subscribe_and_history(city) -> None:
    async with city(TopicSpec("log", (), ("tokyo",), 1), names=("tokyo",)) as c:

        def script() -> None:
            with nearcast.sync.connect(c.url("tokyo"), name="script") as client:
                assert (client.name, client.home) == ("script", "tokyo")
                messages = client.subscribe("log", type=Reading, timeout=5)
                for n in range(3):
                    assert client.publish("log", {"n": n}).stores == ("tokyo",)
                client.publish("log", "no reading")
                assert [message.data.n for message in messages] == [0, 1, 2]
                assert (messages.received, messages.dropped, messages.invalid) == (4, 0, 1)
                with pytest.raises(TimeoutError):
                    messages.get(timeout=0.1)
                assert [message.data for message in client.history("log", last=2)] == [{"n": 2}, "no reading"]
                assert next(client.history("log")).data == {"n": 0}
                replayed = client.subscribe("log", replay=True)
                assert replayed.get(timeout=20).data == {"n": 0}
                messages.close()
                with pytest.raises(EOFError):
                    messages.get()
                assert list(messages) == []

        threads = threading.active_count()
        await in_thread(script)
        assert threading.active_count() <= threads + 1  # the one `to_thread` keeps


async def test_history_longer_than_what_crosses_threads_at_once(city) -> None:
    async with city(TopicSpec("log", (), ("tokyo",), 1), names=("tokyo",)) as c:
        async with nearcast.connect(c.url("tokyo")) as client:
            for receipt in [await client.publish_nowait("log", n, timeout=30) for n in range(1200)]:
                await receipt

        def script() -> list[int]:
            with nearcast.sync.connect(c.url("tokyo")) as client:
                return [message.data for message in client.history("log")]

        assert await in_thread(script) == list(range(1200))


async def test_mistakes_are_the_same_errors_and_a_closed_client_says_so(city) -> None:
    async with city(names=("tokyo",)) as c:

        def script() -> None:
            with pytest.raises(nearcast.ConnectionLostError):
                nearcast.sync.connect("nats://127.0.0.1:1", timeout=0.5)
            with nearcast.sync.connect(c.url("tokyo")) as client:
                with pytest.raises(nearcast.TopicError):
                    client.publish("a b", 1)
                with pytest.raises(nearcast.TopicError):
                    client.subscribe("a b")
                errors: list[BaseException] = []

                def publish_again(error: nearcast.PayloadError) -> None:
                    try:
                        client.publish("errors", str(error))
                    except nearcast.NearcastError as refused:
                        errors.append(refused)

                readings = client.subscribe("x", type=Reading, on_error=publish_again, timeout=5)
                client.publish("x", "no reading")
                assert list(readings) == []
                assert "cannot be used in its own callback" in str(errors[0])
            client.close()
            with pytest.raises(nearcast.ConnectionLostError, match="the client is closed"):
                client.publish("x", 1)

        await in_thread(script)


async def test_the_arguments_are_those_of_the_asyncio_client(city, tmp_path: Path) -> None:
    """Publications could not be kept in a file: it had some of them only."""
    signature = inspect.signature(nearcast.sync.connect)
    assert signature.parameters == inspect.signature(nearcast.connect).parameters
    assert signature.return_annotation is nearcast.sync.SyncClient
    async with city(TopicSpec("log", (), ("tokyo",), 1), names=("tokyo",)) as c:

        def script() -> None:
            with nearcast.sync.connect(c.url("tokyo"), spool=tmp_path / "spool") as client:
                assert client.publish("log", 1).stores == ("tokyo",)
                assert (tmp_path / "spool").is_file()

        await in_thread(script)


FORKED = """
import asyncio, os, sys
import nearcast

def say(work):
    try:
        print("done:", work())
    except nearcast.NearcastError as error:
        print(error)

def child(parent, work):
    pid = os.fork()
    if pid == 0:
        for one in work:
            say(one)
        print(parent, os.getpid(), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def sync():
    with nearcast.sync.connect(sys.argv[1], name="script") as client:
        messages = client.subscribe("x")
        child(os.getpid(), [
            lambda: client.publish("x", 1), messages.get, lambda: list(client.history("x")),
            lambda: client.subscribe("y"), client.flush, messages.close, client.close,
        ])
        client.publish("x", 2)
        print("parent:", messages.get(timeout=20).data)

async def main():
    async with nearcast.connect(sys.argv[1], name="script") as client:
        messages = await client.subscribe("x")
        await client.publish("x", 1)
        await anext(messages)
        child(os.getpid(), [
            lambda: asyncio.run(client.publish("x", 1)), lambda: asyncio.run(read(messages)),
            lambda: asyncio.run(read(client.history("x"))), lambda: asyncio.run(begin(client.subscribe("y"))),
            lambda: asyncio.run(client.flush()), lambda: asyncio.run(messages.close()),
            lambda: asyncio.run(client.__aexit__()),
        ])
        await client.publish("x", 2)
        print("parent:", (await anext(messages)).data)

async def read(messages):
    async for _ in messages:
        pass

async def begin(subscription):
    await subscription

sync() if sys.argv[2] == "sync" else asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["sync", "asyncio"])
async def test_a_forked_child_is_told_to_open_a_client_of_its_own(city, kind: str) -> None:
    async with city(names=("tokyo",)) as c:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FORKED, c.url("tokyo"), kind, stdout=asyncio.subprocess.PIPE
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
    *said, processes, parent = out.decode().splitlines()
    opener, child = processes.split()
    told = f"client script was opened in process {opener}; open one of its own in this process, {child}"
    assert said == [told] * 5 + ["done: None"] * 2
    assert parent == "parent: 2"
