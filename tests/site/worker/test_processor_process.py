"""The process that runs user code: every kind of processor is called, and one that dies is replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.test_processors import MODULE

from nearcast.site.worker.processor_main import Announcement, Setup
from nearcast.site.worker.processor_process import ProcessorProcess, Ticket
from nearcast.site.worker.spool import Spool


async def test_every_kind_of_processor_is_called(tmp_path: Path) -> None:
    done: list[tuple[int, list[bytes]]] = []
    failed: list[str] = []
    finished = asyncio.Event()

    def note(ticket: Ticket, notifications: list[bytes]) -> None:
        done.append((ticket.topic, notifications))
        if len(done) + len(failed) == 9:
            finished.set()

    def note_failure(ticket: Ticket, reason: str) -> None:
        failed.append(reason)

    name = f"processors_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    process = ProcessorProcess(Setup([name], [str(tmp_path)]), note, note_failure)
    running = asyncio.create_task(process.run())
    topics = ["one", "several.x", "later", "later.several", "state.a", "state.b"]
    patterns = ["one", "several.*", "later", "later.several", "state.a", "state.b"]
    spools = [Spool(tmp_path / f"{n}.spool", 10) for n in range(len(topics))]
    for n, (topic, pattern) in enumerate(zip(topics, patterns, strict=True)):
        process.announce(Announcement(n, topic, str(spools[n].path), pattern))
    for topic, payload in (
        (0, b"7"),
        (1, b"1"),
        (1, b"2"),
        (2, b"1"),
        (2, b'"x"'),
        (3, b"2"),
        (4, b"0"),
        (4, b"0"),
        (5, b"0"),
    ):
        process.submit(Ticket(topic, spools[topic].append(b"id", payload), 30, 0))
    async with asyncio.timeout(60):
        await finished.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    for spool in spools:
        spool.close()
    assert done == [
        (0, [b'{"n":7}']),
        (1, [b"raw", b'{"past":[],"newest":null,"size":0}']),
        (1, [b"raw", b'{"past":[1],"newest":1,"size":1}']),
        (2, [b"2"]),
        (3, [b"0", b"1"]),
        (4, [b"1"]),
        (4, [b"2"]),
        (5, [b"1"]),
    ]
    assert len(failed) == 1
    assert failed[0].startswith("TypeError")


ODD = """
import os, sys, time
from nearcast import processor

@processor("chatty")
def chatty(message, spool):
    sys.stderr.write("x" * 200_000 + "\\n")  # more than a pipe holds
    return {"n": message.data}

@processor("forking")
def forking(message, spool):
    if message.data == 1:
        if os.fork() == 0:
            time.sleep(20)  # holds the pipes open
            os._exit(0)
        os._exit(7)
    return {"n": message.data}
"""


GARBLING = """
import os, struct, sys
from nearcast import processor

@processor("garbling")
def garbling(message, spool):
    if message.data:
        os.write(int(sys.argv[3]), GARBAGE[message.data])
    return {"n": message.data}

GARBAGE = {
    1: b"x" * 1000,
    2: struct.pack("<BIQI", 0, 0, 2, 1 << 31),  # notifications of 2 GiB
    3: struct.pack("<BIQI", 0, 0, 4, 3) + b"xxx",
}
"""


async def test_what_is_no_outcome_ends_the_process_and_not_the_worker(tmp_path) -> None:
    """The pipe is open to the user's code: the worker waited for the rest of 2 GiB, or failed over the first bytes."""
    done, failed = await outcomes_of(tmp_path, "garbling", [b"0", b"1", b"2", b"0", b"3", b"0"])
    assert done == [[b'{"n":0}']] * 3
    assert failed == ["what it wrote to the worker is no outcome, or one of more than 64 MiB"] * 3


async def outcomes_of(tmp_path: Path, pattern: str, payloads: list[bytes]) -> tuple[list[list[bytes]], list[str]]:
    name = f"odd_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(ODD + GARBLING)
    done: list[list[bytes]] = []
    failed: list[str] = []
    process = ProcessorProcess(
        Setup([name], [str(tmp_path)]), lambda _, n: done.append(n), lambda _, why: failed.append(why)
    )
    running = asyncio.create_task(process.run())
    spool = Spool(tmp_path / "spool", 10)
    process.announce(Announcement(0, pattern, str(spool.path), pattern))
    for payload in payloads:
        process.submit(Ticket(0, spool.append(b"id", payload), 15, 0))
    try:
        async with asyncio.timeout(120):
            while len(done) + len(failed) < len(payloads):  # noqa: ASYNC110 - counted, not announced
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        spool.close()
    return done, failed


async def test_a_processor_may_write_more_to_standard_error_than_a_pipe_holds(tmp_path, capfd) -> None:
    done, failed = await outcomes_of(tmp_path, "chatty", [b"1", b"2"])
    assert (done, failed) == ([[b'{"n":1}'], [b'{"n":2}']], [])
    assert len(capfd.readouterr().err) > 400_000  # passed on, not swallowed


async def test_a_process_that_dies_is_replaced_while_its_child_holds_the_pipes(tmp_path) -> None:
    done, failed = await outcomes_of(tmp_path, "forking", [b"1", b"2", b"3"])
    assert (done, failed) == ([[b'{"n":2}'], [b'{"n":3}']], ["the processor's process ended with code 7"])
