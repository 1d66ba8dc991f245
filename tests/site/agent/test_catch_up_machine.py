"""Catch-up with a modelled worker in a simulated world: crashes, lost marks, two stores, epochs, delays."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearcast.domain.number_ranges import NumberRanges
from nearcast.nats.digest import id_hash
from nearcast.protocol.marks import Marks, TopicMarks
from nearcast.site.agent import catch_up_machine
from nearcast.site.agent.catch_up_machine import CatchUpMachine, Checkpoint, DeadLetter, Lag, Redeliver

TOPIC = "alerts"


def marks(*numbers: int, source: str = "a", epoch: int = 1) -> Marks:
    said = TopicMarks({source: NumberRanges.of(numbers).flat()})
    return Marks(epoch, "tokyo/worker-0", {TOPIC: said})


def machine_with(count: int, **options: object) -> CatchUpMachine:
    """Publications 1 to count of source a, with their numbers for sequences, stored at second 0."""
    machine = CatchUpMachine(2.0, **options)  # type: ignore[arg-type]
    for number in range(1, count + 1):
        machine.publication(number, 0.0, TOPIC, "a", number)
    return machine


def sequences(found: list[Redeliver | DeadLetter]) -> list[int]:
    return [one.sequence for one in found]


def test_what_is_marked_within_its_settling_time_is_never_sent() -> None:
    machine = machine_with(5)
    assert machine.due(1.9, 100) == []
    machine.marks(6, marks(1, 2, 3, 4, 5), 1.9)
    assert machine.due(100.0, 100) == []
    assert machine.checkpoint().publications == 5


def test_a_mark_may_be_read_before_its_publication() -> None:
    machine = CatchUpMachine(2.0)
    machine.marks(1, marks(1, 2, 4), 0.0)
    for number in range(1, 5):
        machine.publication(1 + number, 0.0, TOPIC, "a", number)
    assert sequences(machine.due(2.0, 100)) == [4]


def test_a_client_that_leaves_out_numbers_takes_limited_memory() -> None:
    """One range for each publication, in memory and in the file that is written every few seconds."""
    machine = CatchUpMachine(2.0)
    for source in range(100):
        for first in range(1, 30_001, 3_000):
            machine.marks(first, marks(*range(first, first + 3_000, 2), source=f"s{source}"), 0.0)
    kept = {one.source: one.marked for one in machine.checkpoint().sources}
    assert sum(map(len, kept.values())) // 2 <= 200_000
    newest = kept["s99"]
    assert len(newest) // 2 <= 20_000
    assert newest[-2:] == [29_999, 29_999], "the newest ones stay"
    machine.publication(1, 0.0, TOPIC, "s99", 29_999)
    assert machine.waiting == 0


def test_while_nobody_answers_only_a_few_are_sent_and_often() -> None:
    machine = machine_with(1000)
    first = sequences(machine.due(2.0, 500))
    assert first == list(range(1, 17))
    assert machine.due(2.4, 500) == []
    again = machine.due(2.6, 500)
    assert len(again) == 16
    machine.taken(again[0].sequence, 2.6)  # somebody is there
    assert len(machine.due(2.7, 1000)) == 484


def answer_all(machine: CatchUpMachine, found: list[Redeliver | DeadLetter], now: float) -> None:
    for one in found:
        machine.taken(one.sequence, now)


def test_more_are_under_way_while_all_are_processed_soon_and_fewer_while_they_are_not() -> None:
    machine, now, sizes, read = machine_with(20_000), 2.0, [], 20_000
    answer_all(machine, machine.due(now, 1000), now)
    for _ in range(5):
        now += 0.25
        found = machine.due(now, 10_000)
        sizes.append(len(found))
        answer_all(machine, found, now)
        read += 1
        machine.marks(read, marks(*sequences(found)), now)
    assert sizes == [484, 968, 1936, 3872, 3984]  # beside the sixteen that were sent first
    found = machine.due(now + 0.25, 10_000)
    answer_all(machine, found, now + 0.25)
    machine.due(now + 3, 10_000)  # none of them has an outcome after more than two seconds
    assert machine.outstanding <= 2000


def test_a_store_yields_to_one_that_is_ahead_and_goes_on_when_that_stops() -> None:
    machine = machine_with(2000)
    machine.rank = 2
    answer_all(machine, machine.due(4.0, 1000), 4.0)
    found = machine.due(4.25, 1000)
    for one in found:  # the worker has them from another store
        machine.known(one.sequence, 4.25)
    machine.marks(2001, marks(*range(1, 501)), 4.3)
    found = machine.due(4.5, 1000)
    assert len(found) == 16
    answer_all(machine, found, 4.5)  # the other store has stopped
    assert len(machine.due(5.6, 1000)) > 16


def test_a_store_whose_redeliveries_are_taken_waits_no_longer_than_the_first_would() -> None:
    machine = machine_with(1)
    machine.rank = 3
    machine.publication(2, 3.0, TOPIC, "a", 2)
    assert machine.due(5.9, 10) == []
    found = machine.due(6.0, 10)
    assert sequences(found) == [1]
    answer_all(machine, found, 6.0)
    assert sequences(machine.due(6.1, 10)) == [2]


def test_what_was_taken_comes_again_after_growing_pauses_and_then_becomes_a_dead_letter() -> None:
    machine, now, attempts, gaps = machine_with(1, max_attempts=3), 2.0, [], []
    last = now
    while True:
        found = machine.due(now, 10)
        if found and isinstance(found[0], DeadLetter):
            assert found[0].attempts == 3
            break
        if found:
            attempts.append(found[0].attempt)
            gaps.append(now - last)
            last = now
            machine.taken(1, now)
        now += 0.25
    assert attempts == [1, 2, 3]
    assert gaps == [0.0, 2.0, 4.0]
    assert machine.waiting == 0


def test_nobody_there_is_no_attempt() -> None:
    machine, now = machine_with(1, max_attempts=2), 2.0
    for _ in range(1000):
        assert all(isinstance(one, Redeliver) and one.attempt == 1 for one in machine.due(now, 10))
        now += 1.0
    assert machine.lag(now) == Lag(1, now)


def test_the_newest_may_come_first() -> None:
    machine = machine_with(100, newest_first=True)
    assert sequences(machine.due(2.0, 500)) == list(range(100, 84, -1))


def test_messages_without_an_id_are_counted_by_content() -> None:
    machine, content = CatchUpMachine(2.0), id_hash(b"", b"21.5")
    for sequence in (1, 2, 3):
        machine.publication(sequence, 0.0, TOPIC, "", 0, content)
    machine.marks(4, Marks(1, "w", {TOPIC: TopicMarks({}, [content, content])}), 0.0)
    assert sequences(machine.due(2.0, 100)) == [3]
    machine.marks(5, Marks(1, "w", {TOPIC: TopicMarks({}, [content, content])}), 0.0)  # one before it is read
    machine.publication(6, 0.0, TOPIC, "", 0, content)
    assert machine.waiting == 0
    machine.marks(7, Marks(1, "w", {TOPIC: TopicMarks({}, [content])}), 100.0)
    machine.publication(8, 0.0, TOPIC, "", 0, content, 200.0)  # stored after the mark was made: it is another one
    assert machine.waiting == 1


def test_a_stale_owner_cannot_mark_but_late_marks_of_its_time_count() -> None:
    machine = machine_with(3)
    machine.marks(4, marks(1, epoch=2), 100.0)
    assert not machine.marks(5, marks(2, epoch=1), 111.0)
    assert machine.marks(6, marks(3, epoch=1), 99.0)  # made before; repaired afterwards
    assert sequences(machine.due(200.0, 10)) == [2]


def test_epochs_that_began_anew_do_not_fence_for_ever() -> None:
    """A coordinator that lost its state counts from 1 again."""
    machine = machine_with(3)
    machine.marks(4, marks(1, epoch=7), 100.0)
    assert not machine.marks(5, marks(2, epoch=1), 150.0)
    assert machine.marks(6, marks(2, epoch=1), 161.0)
    assert machine.marks(7, marks(3, epoch=1), 300.0)
    assert machine.waiting == 0


def test_a_restart_goes_on_before_the_first_without_a_mark() -> None:
    machine = machine_with(10)
    machine.marks(11, marks(1, 2, 3, 7, 8), 0.0)
    saved = machine.checkpoint("then")
    assert (saved.publications, saved.marks, saved.created) == (3, 11, "then")
    again = CatchUpMachine(2.0, checkpoint=saved)
    for number in range(4, 11):
        again.publication(number, 0.0, TOPIC, "a", number)
    assert sequences(again.due(2.0, 100)) == [4, 5, 6, 9, 10]


def test_what_the_store_removed_is_forgotten() -> None:
    machine = machine_with(2)
    machine.gone(1)
    machine.gone(77)
    assert sequences(machine.due(2.0, 10)) == [2]


def test_memory_is_bounded(monkeypatch) -> None:
    monkeypatch.setattr(catch_up_machine, "WAITING_LIMIT", 100)
    monkeypatch.setattr(catch_up_machine, "_SOURCES", 10)
    machine = machine_with(100)
    assert machine.full
    for n in range(100):
        machine.marks(101 + n, marks(1, source=f"s{n}"), 0.0)
    assert len(machine.checkpoint().sources) <= 10
    assert machine.waiting == 100


class World(RuleBasedStateMachine):
    """One topic, two stores with catch-up, a worker that crashes, marks that are lost, a network that drops and delays.

    In the end every stored publication was processed; while no fault happens, none is processed twice.
    """

    @initialize(newest=st.booleans())
    def begin(self, newest: bool) -> None:
        self.now = 0.0
        self.number = 0
        self.stores: list[list[tuple[str, object]]] = [[], []]  # what each has, in order
        self.read = [0, 0]
        self.newest = newest
        self.machines = [self._machine(n) for n in (0, 1)]
        self.alive = True
        self.epoch = 1
        self.queue: list[int] = []  # taken by the worker
        self.unmarked: list[int] = []  # processed, not marked yet
        self.marked: set[int] = set()  # marked lately, as the worker remembers
        self.processed: list[int] = []
        self.faults = 0

    def _machine(self, n: int, checkpoint: Checkpoint | None = None) -> CatchUpMachine:
        machine = CatchUpMachine(2.0, newest_first=self.newest, checkpoint=checkpoint)
        machine.rank = n + 1
        return machine

    # The fast path

    @rule(reaches_worker=st.booleans(), store=st.sampled_from([(0,), (1,), (0, 1)]))
    def publish(self, reaches_worker: bool, store: tuple[int, ...]) -> None:
        self.number += 1
        for one in store:
            self.stores[one].append(("publication", self.number))
        if len(store) < 2 or not reaches_worker:
            self.faults += 1
        if reaches_worker and self.alive:
            self.queue.append(self.number)

    @precondition(lambda self: self.queue)
    @rule()
    def process(self) -> None:
        number = self.queue.pop(0)
        self.processed.append(number)
        self.unmarked.append(number)

    @precondition(lambda self: self.unmarked)
    @rule(lost=st.sampled_from([(), (), (0,), (1,), (0, 1)]))
    def mark(self, lost: tuple[int, ...]) -> None:
        said = marks(*self.unmarked, epoch=self.epoch)
        for n, store in enumerate(self.stores):
            if n in lost:
                self.faults += 1
            else:
                store.append(("marks", (said, self.now)))
        self.marked |= set(self.unmarked)
        self.unmarked = []

    # Faults

    @precondition(lambda self: self.alive)
    @rule()
    def crash(self) -> None:
        self.alive = False
        self.faults += 1
        self.queue, self.unmarked, self.marked = [], [], set()

    @precondition(lambda self: not self.alive)
    @rule(new_epoch=st.booleans())
    def take_over(self, new_epoch: bool) -> None:
        self.alive = True
        self.epoch += new_epoch

    @rule(n=st.sampled_from([0, 1]))
    def restart_agent(self, n: int) -> None:
        saved = self.machines[n].checkpoint()
        self.machines[n] = self._machine(n, saved)
        self.read[n] = min(saved.publications, saved.marks)

    @rule(n=st.sampled_from([0, 1]))
    def repair(self, n: int) -> None:
        """A store gets what the other has."""
        have = list(self.stores[n])
        for entry in self.stores[1 - n]:
            if entry in have:
                have.remove(entry)
            else:
                self.stores[n].append(entry)

    # Time passes, catch-up works

    @rule(seconds=st.sampled_from([0.3, 1.0, 5.0]), lose=st.sampled_from([0, 0, 0, 1]))
    def tick(self, seconds: float, lose: int) -> None:
        self.now += seconds
        for n, machine in enumerate(self.machines):
            self._read(n)
            for one in machine.due(self.now, 100):
                assert isinstance(one, Redeliver)
                _, number = self.stores[n][one.sequence - 1]
                if not self.alive or lose:
                    continue
                if number in self.queue or number in self.unmarked:
                    machine.known(one.sequence, self.now)
                elif number in self.marked:
                    self.unmarked.append(number)  # type: ignore[arg-type]
                    machine.known(one.sequence, self.now)
                else:
                    self.queue.append(number)  # type: ignore[arg-type]
                    machine.taken(one.sequence, self.now)

    def _read(self, n: int) -> None:
        machine, store = self.machines[n], self.stores[n]
        for sequence in range(self.read[n] + 1, len(store) + 1):
            kind, what = store[sequence - 1]
            if kind == "marks":
                said, when = what  # type: ignore[misc]
                machine.marks(sequence, said, when)
            else:
                machine.publication(sequence, self.now, TOPIC, "a", what)  # type: ignore[arg-type]
        self.read[n] = len(store)

    @invariant()
    def nothing_is_processed_twice_without_a_fault(self) -> None:
        if not getattr(self, "faults", 1):
            assert len(set(self.processed)) == len(self.processed)

    def teardown(self) -> None:
        if not hasattr(self, "machines"):
            return
        for machine in self.machines:
            machine.max_attempts = 10**6
        self.alive = True
        for _ in range(200):
            self.tick(1.0, 0)
            while self.queue:
                self.process()
            if self.unmarked:
                self.mark(())
            if not any(machine.waiting for machine in self.machines) and self._all_read():
                break
        stored = {what for store in self.stores for kind, what in store if kind == "publication"}
        assert stored <= set(self.processed)
        assert not any(machine.waiting for machine in self.machines)

    def _all_read(self) -> bool:
        return all(read == len(store) for read, store in zip(self.read, self.stores, strict=True))


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
