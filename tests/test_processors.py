"""Processors: what may be marked, what is found, what they see, and how the runner calls them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nearcast import NearcastError, processor
from nearcast.codec import typed_decoder
from nearcast.processors import ProcessorError, ProcessorSpec, SpoolView, find_processor, load_processors
from nearcast.site.worker.processor_main import Announcement, Setup
from nearcast.site.worker.processor_process import ProcessorProcess, Ticket
from nearcast.site.worker.spool import Spool

MODULE = """
from nearcast import processor

@processor("one")
def one(message, spool):
    return {"n": message.data}

@processor("several.*", spool=3, timeout=9)
def several(message, spool):
    yield b"raw"
    yield {"past": [m.data for m in spool], "newest": spool[-1].data if spool else None, "size": len(spool)}

@processor("later")
async def later(message, spool):
    return message.data + 1

@processor("later.several")
async def later_several(message, spool):
    for n in range(message.data):
        yield n

@processor("state.a")
@processor("state.b")
class Counter:
    def __init__(self):
        self.count = 0
    def process(self, message, spool):
        self.count += 1
        return self.count
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Setup]:
    name = f"processors_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    path = list(sys.path)
    yield Setup([name], [str(tmp_path)])
    sys.path[:] = path
    sys.modules.pop(name, None)


def test_all_marked_functions_and_classes_are_found(module: Setup) -> None:
    specs = [found.spec for found in load_processors(module.modules, module.search_path)]
    assert {spec.pattern for spec in specs} == {"one", "several.*", "later", "later.several", "state.a", "state.b"}
    assert find_processor(specs, "several.x") == ProcessorSpec("several.*", 3, 9)
    assert find_processor(specs, "several.*").spool == 3
    with pytest.raises(ProcessorError, match="no processor handles it; the modules have: later"):
        find_processor(specs, "elsewhere")


def test_mistakes_are_named(tmp_path: Path, module: Setup) -> None:
    with pytest.raises(ProcessorError, match="spool is 0"):
        processor("x", spool=0)
    with pytest.raises(ProcessorError, match="timeout is -1"):
        processor("x", timeout=-1)
    with pytest.raises(NearcastError, match="a level is empty"):
        processor("x..y")
    with pytest.raises(ProcessorError, match="class Empty has no method `process"):
        processor("x")(type("Empty", (), {}))
    with pytest.raises(ProcessorError, match="'no_such_module_here' cannot be imported"):
        load_processors(["no_such_module_here"])
    with pytest.raises(ProcessorError, match="module 'json' has no processor"):
        load_processors(["json"])


def test_the_view_is_a_sequence_that_ends_before_the_message_in_hand(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", 10)
    for n in range(6):
        spool.append(b"id%d" % n, b"%d" % n)
    view = SpoolView(spool, "t", 3)
    view.advance(5)
    assert [m.data for m in view] == [2, 3, 4]
    assert [m.data for m in reversed(view)] == [4, 3, 2]
    assert (len(view), view[-1].data, view[0].data, [m.data for m in view[1:]]) == (3, 4, 2, [3, 4])
    first = view[1]
    view.advance(6)
    assert view[0] is first, "what is still in the view is not made anew"
    with pytest.raises(IndexError, match="has 3 messages, not one at 3"):
        view[3]
    view.advance(0)
    assert list(view) == []
    spool.close()


async def test_the_runner_calls_every_kind_of_processor(tmp_path: Path, module: Setup) -> None:
    done: list[tuple[int, list[bytes]]] = []
    failed: list[str] = []
    finished = asyncio.Event()

    def note(ticket: Ticket, notifications: list[bytes]) -> None:
        done.append((ticket.topic, notifications))
        if len(done) + len(failed) == 9:
            finished.set()

    def note_failure(ticket: Ticket, reason: str) -> None:
        failed.append(reason)

    executor = ProcessorProcess(module, note, note_failure)
    running = asyncio.create_task(executor.run())
    topics = ["one", "several.x", "later", "later.several", "state.a", "state.b"]
    patterns = ["one", "several.*", "later", "later.several", "state.a", "state.b"]
    spools = [Spool(tmp_path / f"{n}.spool", 10) for n in range(len(topics))]
    for n, (topic, pattern) in enumerate(zip(topics, patterns, strict=True)):
        executor.announce(Announcement(n, topic, str(spools[n].path), pattern))
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
        executor.submit(Ticket(topic, spools[topic].append(b"id", payload), 30, 0))
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


class Reading(msgspec.Struct):
    speed: float


def test_a_typed_view_leaves_out_what_is_of_another_type(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s", 10)
    payloads = [b"{}", b'{"speed":1}', b"no JSON", b'{"speed":"2"}', b'{"speed":3}', b'{"speed":4}']
    for n, payload in enumerate(payloads):
        spool.append(b"id%d" % n, payload)
    view = SpoolView(spool, "t", 3, typed_decoder(Reading))
    view.advance(3)
    assert [m.data for m in view] == [Reading(1)]
    view.advance(5)
    assert ([m.data for m in view], view[-1].data, len(view)) == ([Reading(3)], Reading(3), 1)
    view.advance(6)
    assert [m.data for m in reversed(view)] == [Reading(4), Reading(3)]
    assert [m.data for m in view[:1]] == [Reading(3)]
    view.advance(2)
    assert [m.data for m in view] == [Reading(1)]
    spool.close()


def test_a_type_that_cannot_be_decoded_is_named() -> None:
    with pytest.raises(ProcessorError, match=r"processor 'x': type is int \| object, which msgspec cannot"):
        processor("x", type=int | object)


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
            time.sleep(20)  # holds the runner's pipes open
            os._exit(0)
        os._exit(7)
    return {"n": message.data}
"""


async def outcomes_of(tmp_path: Path, pattern: str, payloads: list[bytes]) -> tuple[list[list[bytes]], list[str]]:
    name = f"odd_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(ODD)
    done: list[list[bytes]] = []
    failed: list[str] = []
    executor = ProcessorProcess(
        Setup([name], [str(tmp_path)]), lambda _, n: done.append(n), lambda _, why: failed.append(why)
    )
    running = asyncio.create_task(executor.run())
    spool = Spool(tmp_path / "spool", 10)
    executor.announce(Announcement(0, pattern, str(spool.path), pattern))
    for payload in payloads:
        executor.submit(Ticket(0, spool.append(b"id", payload), 15, 0))
    try:
        async with asyncio.timeout(60):
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


async def test_a_runner_that_dies_is_replaced_while_its_child_holds_the_pipes(tmp_path) -> None:
    done, failed = await outcomes_of(tmp_path, "forking", [b"1", b"2", b"3"])
    assert (done, failed) == ([[b'{"n":2}'], [b'{"n":3}']], ["the processor's process ended with code 7"])
