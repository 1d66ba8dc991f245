"""Processors: what may be marked, what is found and what they see."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nearcast import NearcastError, processor
from nearcast.codec import typed_decoder
from nearcast.processors import ProcessorError, ProcessorSpec, SpoolView, find_processor, load_processors
from nearcast.site.worker.processor_main import Setup
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
