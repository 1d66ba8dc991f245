"""The file of publications without a receipt: nothing is lost or invented, wherever the process is killed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearcast import InputError
from nearcast.client.acknowledgements import QuorumPublication
from nearcast.client.publication_spool import PublicationSpool, SpoolFullError

LIMIT = 4_000


def publication(n: int, size: int = 10) -> QuorumPublication:
    return QuorumPublication(f"p~aaaaa:home:{n}:{n}", "t", "pub.t", 2, bytes([n % 256]) * size)


@settings(deadline=None)
@given(st.lists(st.integers(-1, 3), max_size=12), st.data())
def test_a_file_cut_at_any_byte_has_a_prefix_of_what_was_done(steps: list[int], data: st.DataObject) -> None:
    """A step is a publication, or the receipt of one that waits: the oldest, the second, …"""
    with tempfile.TemporaryDirectory() as folder:
        path, waiting = Path(folder) / "spool", []
        states: list[list[str]] = [[]]
        sizes = [0]
        spool = PublicationSpool(path, 1 << 20)
        for n, step in enumerate(steps):
            if step < 0 or step >= len(waiting):
                spool.append(publication(n))
                waiting = [*waiting, publication(n).id]
            else:
                spool.done(waiting[step])
                waiting = waiting[:step] + waiting[step + 1 :]
            if path.stat().st_size < sizes[-1]:  # it was emptied
                states, sizes = [[]], [0]
            states.append(waiting)
            sizes.append(path.stat().st_size)
        spool.close()
        content = path.read_bytes()
        cut = data.draw(st.integers(0, len(content)), label="killed after this byte")
        torn = data.draw(st.binary(max_size=20), label="what the disk had behind it")
        path.write_bytes(content[:cut] + torn)
        again = PublicationSpool(path, 1 << 20)
        whole = max(k for k, size in enumerate(sizes) if size <= cut)
        assert again.waiting in states[whole:], "all that was written, and perhaps what the torn bytes completed"
        assert [again.read(message_id).id for message_id in again.waiting] == again.waiting
        again.append(publication(999))
        again.close()
        third = PublicationSpool(path, 1 << 20)
        assert third.waiting[-1] == publication(999).id, "what is written behind a torn entry can be read"
        third.close()


class Life(RuleBasedStateMachine):
    """Publications, receipts, full files and restarts, against a list."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "spool"
        self.spool = PublicationSpool(self.path, LIMIT)
        self.waiting: list[QuorumPublication] = []
        self.count = 0

    @rule(size=st.integers(0, 1_500))
    def publish(self, size: int) -> None:
        self.count += 1
        one = publication(self.count, size)
        try:
            self.spool.append(one)
        except SpoolFullError:
            needed = sum(len(other.payload) + 60 for other in [*self.waiting, one])
            assert needed > LIMIT * 0.9, "only when it does not fit"
        else:
            self.waiting.append(one)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def receipt(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        self.spool.done(one.id)
        self.waiting.remove(one)

    @rule()
    def restart(self) -> None:
        self.spool.close()
        self.spool = PublicationSpool(self.path, LIMIT)

    @invariant()
    def it_has_what_waits_in_order(self) -> None:
        if hasattr(self, "spool"):
            assert [self.spool.read(message_id) for message_id in self.spool.waiting] == self.waiting
            assert self.path.stat().st_size <= LIMIT + 200, "the receipts of a full file may not fit"

    def teardown(self) -> None:
        if hasattr(self, "spool"):
            self.spool.close()
            self.folder.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_two_processes_do_not_share_a_spool(tmp_path: Path) -> None:
    first = PublicationSpool(tmp_path / "spool", LIMIT)
    with pytest.raises(InputError, match="another process uses it"):
        PublicationSpool(tmp_path / "spool", LIMIT)
    first.close()


def test_a_path_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        PublicationSpool(tmp_path / "missing" / "spool", LIMIT)
