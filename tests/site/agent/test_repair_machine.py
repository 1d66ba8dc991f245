"""Replicas with any subsets of the messages have all of them in the end, through losses and crashes of the exchange."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearcast.nats.digest import content_hash
from nearcast.site.agent.repair_machine import (
    ROUND_PERIOD,
    AskDigests,
    CompareHashes,
    Digests,
    Event,
    FetchBuckets,
    Fetched,
    FetchSequences,
    Instruction,
    Missing,
    RepairMachine,
    RoundFailed,
)  # fmt: skip
from nearcast.site.agent.replica_contents import missing_sequences
from nearcast.site.agent.store_index import BUCKET_US, IndexedMessage, StoreIndex, bucket_of

PAGE = 2  # buckets of one answer: rounds have several pages


@dataclass(frozen=True)
class Stored:
    id: int
    time_us: int

    @property
    def hash(self) -> int:
        return content_hash(b"pub.t", b"%d" % self.id, b"")


class Replica:
    """A store: its stream, the real index of it, and the machine under test."""

    def __init__(self, name: str, names: list[str], quorum: int) -> None:
        self.name = name
        self.stream: list[Stored | None] = []  # None: damaged, cannot be read
        self.machine = RepairMachine(lambda bucket: self.index.digest(bucket), lambda: self.index.floor)
        self.machine.set_replicas([other for other in names if other != name], quorum)
        self.instruction: Instruction | None = None
        self.now = 0.0
        self.rescan()

    def rescan(self) -> None:
        self.index = StoreIndex(None).stream("s")
        readable = [(n, one) for n, one in enumerate(self.stream, 1) if one is not None]
        self.index.add([IndexedMessage(n, one.time_us, one.hash) for n, one in readable], self.now, len(self.stream))

    def store(self, messages: list[Stored]) -> None:
        have = {one.id for one in self.stream if one is not None}
        for message in messages:
            if message.id not in have:  # the server drops duplicates
                self.stream.append(message)
                self.index.add([IndexedMessage(len(self.stream), message.time_us, message.hash)], self.now)

    @property
    def ids(self) -> set[int]:
        return {one.id for one in self.stream if one is not None}

    def bucket(self, bucket: int) -> list[tuple[int, Stored]]:
        numbered = enumerate(self.stream, 1)
        return [(n, one) for n, one in numbered if one is not None and bucket_of(one.time_us) == bucket]

    def answer(self, instruction: Instruction, peer: Replica) -> Event:
        """What the shell would do with the peer."""
        match instruction:
            case AskDigests(_, start, within, quiet):
                after = peer.now - within if within else float("-inf")
                found = peer.index.digests(range(start, 1 << 40), PAGE, after, (peer.now - quiet, peer.now + 1))
                return Digests(found, peer.index.floor, found[-1].bucket + 1 if len(found) == PAGE else 0)
            case FetchBuckets(_, first, last):
                got = [one for bucket in range(first, last + 1) for _, one in peer.bucket(bucket)]
                self.store(got)
                return Fetched(len(got))
            case CompareHashes(_, bucket):
                ours = Counter(one.hash for _, one in self.bucket(bucket))
                return Missing(tuple(missing_sequences(((one.hash, n) for n, one in peer.bucket(bucket)), ours)))
            case FetchSequences(_, sequences):
                got = [one for n in sequences if (one := peer.stream[n - 1]) is not None]
                self.store(got)
                return Fetched(len(got))


class RepairWorld(RuleBasedStateMachine):
    """Three replicas; messages reach any of them; exchanges fail at any step; disks are lost."""

    @initialize(quorum=st.integers(1, 3))
    def start(self, quorum):
        self.names = ["a", "b", "c"]
        self.replicas = {name: Replica(name, self.names, quorum) for name in self.names}
        self.now, self.numbers, self.known = 0.0, itertools.count(), set()
        for replica in self.replicas.values():
            replica.machine.returned(self.now)
            replica.machine.heard(self.names, self.now)

    @rule(bucket=st.integers(0, 4), where=st.sets(st.sampled_from("abc"), min_size=1))
    def publish(self, bucket, where):
        message = Stored(next(self.numbers), bucket * BUCKET_US + 1)
        for name in where:
            self.replicas[name].store([message])
        self.known.add(message.id)

    @rule(name=st.sampled_from("abc"))
    def step(self, name):
        replica = self.replicas[name]
        self.pass_time(2.0)
        if replica.instruction is None:
            replica.instruction = replica.machine.start_round(self.now)
        else:
            event = replica.answer(replica.instruction, self.replicas[replica.instruction.peer])
            replica.instruction = replica.machine.handle(event, self.now)

    @rule(name=st.sampled_from("abc"), took_effect=st.booleans())
    def lose_an_answer(self, name, took_effect):
        replica = self.replicas[name]
        if replica.instruction is not None:
            if took_effect:
                replica.answer(replica.instruction, self.replicas[replica.instruction.peer])
            replica.instruction = replica.machine.handle(RoundFailed("lost"), self.now)

    @rule(name=st.sampled_from("abc"))
    def crash(self, name):
        """The agent dies; its index is on disk."""
        old = self.replicas[name]
        fresh = self.replicas[name] = Replica(name, self.names, 1)
        fresh.stream, fresh.now = old.stream, self.now
        fresh.rescan()
        fresh.machine.returned(self.now)
        fresh.machine.heard(self.names, self.now)

    @precondition(lambda self: all(r.ids == self.known for r in self.replicas.values()))
    @rule(name=st.sampled_from("abc"))
    def lose_the_disk(self, name):
        replica = self.replicas[name]
        replica.stream.clear()
        replica.rescan()
        replica.instruction = None
        replica.machine.returned(self.now)

    @precondition(lambda self: self.known and all(r.ids == self.known for r in self.replicas.values()))
    @rule(name=st.sampled_from("abc"), which=st.integers(0, 100))
    def damage(self, name, which):
        replica = self.replicas[name]
        replica.stream[which % len(replica.stream)] = None
        replica.rescan()
        replica.machine.rescanned()

    @rule(name=st.sampled_from("abc"))
    def cut_off_and_back(self, name):
        for replica in self.replicas.values():
            present = [] if replica.name == name else [other for other in self.names if other != name]
            replica.machine.heard(present, self.now)
            replica.machine.heard(self.names, self.now)

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0, 4000.0]))
    def pass_time(self, seconds):
        self.now += seconds
        for replica in self.replicas.values():
            replica.now = self.now

    @invariant()
    def nothing_is_invented(self):
        for replica in self.replicas.values():
            assert replica.ids <= self.known

    def teardown(self):
        if not hasattr(self, "replicas"):
            return
        for _ in range(400):
            if all(r.ids == self.known and not r.machine.behind for r in self.replicas.values()):
                return
            for name in self.names:
                self.step(name)
            self.pass_time(ROUND_PERIOD)
        raise AssertionError({name: self.known - replica.ids for name, replica in self.replicas.items()})


TestRepairWorld = RepairWorld.TestCase
TestRepairWorld.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def pair(quorum: int = 1) -> tuple[Replica, Replica]:
    one, other = Replica("a", ["a", "b"], quorum), Replica("b", ["a", "b"], quorum)
    for replica in (one, other):
        replica.machine.returned(1.0)
        replica.machine.heard(["a", "b"], 0.0)
    return one, other


def run_round(replica: Replica, peer: Replica, now: float) -> list[Instruction]:
    replica.now = peer.now = now
    done, instruction = [], replica.machine.start_round(now)
    while instruction is not None:
        done.append(instruction)
        instruction = replica.machine.handle(replica.answer(instruction, peer), now)
    return done


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_two_replicas_with_any_subsets_end_up_with_the_union(ours, theirs):
    one, other = pair()
    for replica, ids in ((one, ours), (other, theirs)):
        replica.store([Stored(n, n * BUCKET_US // 3) for n in sorted(ids)])
    for now in range(2, 300):
        run_round(one, other, now)
        run_round(other, one, now)
    assert one.ids == other.ids == ours | theirs
    assert not one.machine.behind
    assert not other.machine.behind


def test_a_replica_is_behind_until_it_compared_after_it_came_back():
    one, other = pair()
    assert one.machine.behind
    assert one.machine.start_round(0.5) is None, "not before all that is new reaches it"
    run_round(one, other, 2.0)
    assert not one.machine.behind
    one.machine.returned(10.0)
    assert one.machine.behind


def test_a_replica_that_hears_too_few_others_cannot_know_what_it_lacks():
    replica = Replica("a", ["a", "b", "c"], quorum=2)
    peer = Replica("b", ["a", "b", "c"], quorum=2)
    replica.machine.heard(["b"], 0.0)
    run_round(replica, peer, 2.0)
    assert not replica.machine.behind, "of two that acknowledged, one is it or b"
    replica.machine.heard([], 3.0)
    assert replica.machine.behind
    replica.machine.heard(["b"], 4.0)
    assert replica.machine.behind
    run_round(replica, peer, 6.0)
    assert not replica.machine.behind


def test_a_difference_that_cannot_be_repaired_is_looked_at_once():
    one, other = pair()
    one.store([Stored(1, 1), Stored(2, 2)])
    other.store([Stored(1, 1)])
    assert any(isinstance(done, CompareHashes) for done in run_round(one, other, 2.0))
    assert not any(isinstance(done, CompareHashes) for done in run_round(one, other, 100.0))
    other.store([Stored(3, 3)])
    assert any(isinstance(done, CompareHashes) for done in run_round(one, other, 200.0))


def test_empty_buckets_are_fetched_whole_and_many_at_a_time():
    one, other = pair()
    other.store([Stored(n, n * BUCKET_US) for n in range(1, 20)])
    done = run_round(one, other, 2.0)
    assert not any(isinstance(step, CompareHashes) for step in done)
    assert one.ids == other.ids
    assert one.machine.behind, "until a round has found nothing"
    run_round(one, other, 3.0)
    assert not one.machine.behind


def test_a_topic_with_one_replica_is_never_behind():
    alone = Replica("a", ["a"], quorum=1)
    assert not alone.machine.behind


def test_a_copy_waits_for_a_silent_replica_for_a_while_only() -> None:
    machine = RepairMachine(lambda bucket: StoreIndex(None).stream("s").digest(bucket), lambda: 0)
    machine.set_replicas(["osaka", "cloud"], quorum=2)
    machine.heard(["cloud"], 0.0)
    assert machine.start_round(1.0) is not None
    machine.handle(Digests([], 0), 1.0)
    machine.heard(["cloud"], 9.0)
    assert machine.copied_from(9.0) == []
    assert machine.copied_from(10.0) == ["cloud"]
    assert not machine.behind, "of two that acknowledged one is here or in the cloud"
    machine.heard(["cloud", "osaka"], 11.0)
    assert machine.copied_from(30.0) == [], "it is heard, and not compared with yet"
    machine.heard([], 31.0)
    assert machine.copied_from(60.0) == []


def test_a_copy_waits_for_a_silent_replica_that_may_have_what_nobody_else_has() -> None:
    """With quorum 1 an old store that stopped before the first comparison was given up, and what it alone had."""
    machine = RepairMachine(lambda bucket: StoreIndex(None).stream("s").digest(bucket), lambda: 0)
    machine.set_replicas(["osaka", "cloud"], quorum=1)
    machine.heard(["cloud"], 0.0)
    assert machine.start_round(1.0) is not None
    machine.handle(Digests([], 0), 1.0)
    machine.heard(["cloud"], 9.0)
    assert machine.copied_from(1_000.0) == []
    machine.heard(["cloud", "osaka"], 1_001.0)
    assert machine.start_round(1_003.0) is not None
    machine.handle(Digests([], 0), 1_003.0)
    machine.heard(["cloud"], 1_004.0)
    assert machine.copied_from(1_014.0) == ["cloud"], "what osaka takes since then comes here, too"
    machine.returned(1_020.0)
    machine.heard(["cloud"], 1_021.0)
    while machine.start_round(1_021.0) is not None:
        machine.handle(Digests([], 0), 1_021.0)
    assert machine.copied_from(1_040.0) == [], "this store was away: osaka may have taken something meanwhile"
