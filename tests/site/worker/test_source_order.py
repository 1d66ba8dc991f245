"""Order per publisher: held until the missing one came, was marked elsewhere, or long enough."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.domain.number_ranges import NumberRanges
from nearcast.site.worker.source_order import SourceOrder


class Intake:
    """Publications of one source in the order they are processed."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.order: SourceOrder[int] = SourceOrder(ordered=ordered)
        self.processed: list[int] = []

    def arrive(self, *numbers: int, now: float = 0.0) -> list[int]:
        for number in numbers:
            self.processed += self.order.arrive("gps", "car", number, number, now)
        return self.processed


@given(st.permutations(range(1, 8)))
def test_whatever_the_order_of_arrival_numbers_are_processed_in_order(numbers: list[int]) -> None:
    intake = Intake()
    intake.arrive(0)
    assert intake.arrive(*numbers) == list(range(8))
    assert intake.order.held == 0


def test_a_gap_is_not_waited_for_for_ever() -> None:
    intake = Intake()
    assert intake.arrive(1, 2, 5, 6) == [1, 2]
    assert intake.order.expire(3.9) == []
    assert intake.order.expire(4.0) == [5, 6]
    assert intake.arrive(7, 3) == [1, 2, 7, 3]  # better late than never
    assert intake.order.held == 0


def test_what_another_member_has_in_hand_is_waited_for_until_its_mark() -> None:
    intake = Intake()
    intake.order.done_elsewhere("gps", "car", 1, 10)
    intake.order.taken_elsewhere("gps", "car", 11)
    intake.order.taken_elsewhere("gps", "car", 12)
    assert intake.arrive(13, 14) == []
    assert list(intake.order.done_elsewhere("gps", "car", 12, 12)) == []
    assert list(intake.order.done_elsewhere("gps", "car", 11, 11)) == [13, 14]


def test_sources_do_not_wait_for_each_other() -> None:
    order: SourceOrder[str] = SourceOrder()
    order.arrive("gps", "a", 1, "a1", 0.0)
    assert list(order.arrive("gps", "a", 3, "a3", 0.0)) == []
    assert list(order.arrive("gps", "b", 3, "b3", 0.0)) == ["b3"]
    assert list(order.arrive("other", "a", 9, "a9", 0.0)) == ["a9"]


def learn(intake: Intake, marked: list[int], unmarked: list[int]) -> list[int]:
    return list(intake.order.learn("gps", "car", NumberRanges(marked), NumberRanges(unmarked)))


def test_where_order_is_asked_for_a_new_owner_begins_where_the_stores_say() -> None:
    intake = Intake(ordered=True)
    assert intake.arrive(50, 51) == []
    assert intake.order.unknown(10) == [("gps", "car")]
    assert intake.arrive(49, 47, now=2.0) == []
    assert learn(intake, [1, 46], [47, 50]) == [47]
    assert intake.order.unknown(10) == []
    assert intake.order.expire(59.9) == []  # a store has 48, and gives it
    assert intake.arrive(48, now=59.9) == [48, 49, 50, 51]
    assert intake.arrive(53, now=60.0) == [48, 49, 50, 51]
    assert intake.order.expire(119.9) == []
    assert intake.arrive(52, now=119.9) == [48, 49, 50, 51, 52, 53]
    assert Intake(ordered=True).arrive(1, 2) == [1, 2]


def test_what_no_store_has_behind_the_newest_mark_may_be_on_its_way() -> None:
    intake = Intake(ordered=True)
    intake.arrive(9)
    assert learn(intake, [1, 3, 5, 7], []) == []
    assert intake.arrive(8) == [8, 9]


def test_what_was_processed_between_two_that_were_not_is_not_waited_for() -> None:
    intake = Intake(ordered=True)
    intake.arrive(10)
    assert learn(intake, [1, 3, 5, 8], [4, 4, 9, 10]) == []
    assert intake.arrive(4) == [4]
    assert intake.arrive(9) == [4, 9, 10]


def test_what_is_far_behind_is_not_waited_for_and_costs_no_memory() -> None:
    intake = Intake(ordered=True)
    intake.arrive(5, 1_000_001)
    assert learn(intake, [1, 3, 6, 1_000_000], [4, 5]) == [5, 1_000_001]
    assert intake.order.unknown(1) == []


def test_a_new_owner_whom_no_store_tells_anything_waits_a_minute_at_most() -> None:
    intake = Intake(ordered=True)
    for now in range(60):
        assert intake.arrive(100 - now, now=float(now)) == []
        assert intake.order.expire(float(now)) == []
    assert intake.order.expire(60.0) == list(range(41, 101))


def test_a_member_that_joins_is_told_by_the_one_it_joins() -> None:
    order: SourceOrder[int] = SourceOrder(ordered=True, adopting=True)
    order.arrive("gps", "car", 7, 7, 0.0)
    assert order.unknown(10) == []
    order.adopt([])
    assert order.unknown(10) == [("gps", "car")]


def test_what_its_client_gave_up_is_not_waited_for() -> None:
    """An ordered topic stood still for a minute after publications had failed in an outage (chaos, seeds 8 and 10)."""
    intake = Intake(ordered=True)
    assert intake.arrive(1, 2, 40_000, 40_003) == [1, 2]
    assert list(intake.order.given_up("gps", "car", 3, 39_999)) == [40_000]
    assert list(intake.order.given_up("gps", "car", 40_001, 40_002)) == [40_003]
    assert intake.arrive(40_004, 7) == [1, 2, 40_004, 7], "one that came after all is processed, and is late"
    assert intake.order.has_passed("gps", "car", 7)


def test_what_was_given_up_and_is_in_hand_is_waited_for() -> None:
    intake = Intake(ordered=True)
    intake.arrive(1)
    intake.order.taken_elsewhere("gps", "car", 3)
    intake.arrive(4, 6)
    assert list(intake.order.given_up("gps", "car", 2, 5)) == []
    assert list(intake.order.done_elsewhere("gps", "car", 3, 3)) == [4, 6]


def test_a_new_owner_that_knows_nothing_of_a_source_skips_what_was_given_up() -> None:
    intake = Intake(ordered=True)
    assert intake.arrive(5, 9) == []
    assert list(intake.order.given_up("gps", "car", 6, 8)) == []
    assert learn(intake, [1, 4], [5, 5]) == [5, 9]


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from("agmx"), st.integers(1, 6)), max_size=30))
def test_nothing_is_lost_or_given_twice(steps: list[tuple[str, int]]) -> None:
    """Arrivals, marks of others and time, in any order: each arrival comes out once."""
    intake, arrived, clock = Intake(), list[int](), itertools.count()
    for what, number in steps:
        now = float(next(clock))
        if what == "a" and number not in arrived:
            arrived.append(number)
            intake.arrive(number, now=now)
        elif what == "m" and number not in arrived:
            intake.processed += intake.order.done_elsewhere("gps", "car", number, number)
        elif what == "g":
            intake.processed += intake.order.given_up("gps", "car", max(1, number - 2), number)
        elif what == "x":
            intake.processed += intake.order.expire(now)
    intake.processed += intake.order.expire(1e9)
    assert sorted(intake.processed) == sorted(arrived)
    assert intake.order.held == 0


def test_a_gap_in_a_fast_flow_costs_no_more_per_message_than_a_small_one() -> None:
    """Counted, not timed: how often the numbers that are held are looked at."""
    looked = 0

    class Number(int):
        def __lt__(self, other: int) -> bool:
            nonlocal looked
            looked += 1
            return int(self) < other

    order: SourceOrder[int] = SourceOrder()
    order.arrive("gps", "car", Number(1), 1, 0.0)
    for number in range(3, 10_003):
        assert not order.arrive("gps", "car", Number(number), number, 0.0)
    assert looked < 30_000
    assert len(list(order.arrive("gps", "car", 2, 2, 0.0))) == 10_001


def test_what_comes_between_two_that_another_member_has_done_is_processed() -> None:
    intake = Intake()
    intake.order.done_elsewhere("gps", "car", 1, 1)
    intake.order.done_elsewhere("gps", "car", 3, 3)
    assert intake.arrive(2, 4) == [2, 4]


class Member:
    """One of two workers of a site: what its machine says, done with the delays of a broker nearby."""

    def __init__(self, world: SiteWorld, *, ordered: bool, adopting: bool = False) -> None:
        self.world, self.order = world, SourceOrder[int](ordered=ordered, adopting=adopting)
        self.in_flight: set[int] = set()
        self.unmarked: list[int] = []
        self.hurries = False
        self.listens = not adopting

    def receive(self, number: int) -> None:
        self.in_flight.add(number)
        self.world.stored.add(number)
        self.world.after(0.002, lambda: self.peer.copied(number))
        self.process(self.order.arrive("gps", "car", number, number, self.world.now))

    def ask(self) -> None:
        """What the stores had when they were asked."""
        marked = NumberRanges.of(range(1, self.world.first))
        for number in self.world.marked:
            marked.add(number, number)
        unmarked = NumberRanges.of(self.world.stored).without(marked)
        self.world.after(0.5, lambda: self.process(self.order.learn("gps", "car", marked, unmarked)))

    def copied(self, number: int) -> None:
        if self.listens and self.order.taken_elsewhere("gps", "car", number):
            self.hurries = True
            self.publish()

    def process(self, numbers: list[int]) -> None:
        for number in numbers:
            self.world.after(0.001, lambda number=number: self.done(number))

    def done(self, number: int) -> None:
        self.world.processed.append(number)
        self.unmarked.append(number)
        if self.hurries:
            self.publish()

    def publish(self) -> None:
        marked, self.unmarked = self.unmarked, []
        self.in_flight -= set(marked)
        self.world.marked |= set(marked)
        self.world.after(0.002, lambda: self.peer.marked(marked))

    def marked(self, numbers: list[int]) -> None:
        for number in numbers if self.listens else ():
            released = list(self.order.done_elsewhere("gps", "car", number, number))
            self.hurries |= bool(released)
            self.process(released)

    def tick(self) -> None:
        self.publish()
        self.process(self.order.expire(self.world.now))
        if self.order.unknown(1):
            self.ask()
        self.world.after(0.1, self.tick)

    @property
    def peer(self) -> Member:
        return self.world.members[self.world.members[0] is self]


class SiteWorld:
    """A broker that gives each publication to either of two workers, and a clock."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.now, self._events, self._count = 0.0, list[tuple[float, int, Callable[[], None]]](), itertools.count()
        self.processed: list[int] = []
        self.first, self.stored, self.marked = 1, set[int](), set[int]()
        self.members = [Member(self, ordered=ordered), Member(self, ordered=ordered, adopting=True)]
        for member in self.members:
            self.after(0.1, member.tick)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), action))

    def join(self) -> None:
        """The second one asks the first one how far it is."""
        old, new = self.members
        new.listens = True
        positions = [(*position, set(old.in_flight)) for position in old.order.positions()]
        self.after(0.002, lambda: new.process(new.order.adopt(positions)))

    def run(self, until: float) -> None:
        while self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until


@pytest.mark.parametrize("seed", range(5))
def test_two_workers_of_a_site_that_get_publications_in_turn_keep_the_order(seed: int) -> None:
    """A topic moves between them: 300 a second, both are members for a second, the spool tells nothing."""
    rng, world = np.random.default_rng(seed), SiteWorld()
    old, new = world.members
    world.after(0.5, world.join)
    for number in range(1, 601):
        at = number / 300
        member = old if at < 0.51 else new if at > 1.51 else world.members[rng.integers(2)]
        world.after(at, lambda member=member, number=number: member.receive(number))
    world.run(2.5)
    assert world.processed == list(range(1, 601))


@pytest.mark.parametrize("delay", [0.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_worker_that_joins_an_ordered_topic_while_stores_redeliver_keeps_the_order(seed: int, delay: float) -> None:
    """All was started anew: stores give what they have to either worker, new ones come in between (chaos, seed 7).

    Stores that compare themselves with each other first give nothing for some seconds (chaos, seed 10).
    """
    rng, world = np.random.default_rng(seed), SiteWorld(ordered=True)
    world.after(0.5, world.join)
    world.first, world.stored = 100, set(range(100, 300))
    redelivered = rng.permutation(np.arange(100, 300))
    arrivals = [(delay + i / 200, int(number)) for i, number in enumerate(redelivered)]
    arrivals += [(0.1 + i / 50, 300 + i) for i in range(300)]
    for at, number in sorted(arrivals):
        member = world.members[rng.integers(2) if at > 0.51 else 0]
        world.after(at, lambda member=member, number=number: member.receive(number))
    world.run(40.0)
    assert world.processed == list(range(100, 600))


@pytest.mark.parametrize("seed", range(5))
def test_two_workers_of_an_ordered_topic_give_a_gap_up_and_keep_the_order(seed: int) -> None:
    """What failed while all was down never comes: both wait for it, and each has part of the rest (chaos, seed 10)."""
    rng, world = np.random.default_rng(seed), SiteWorld(ordered=True)
    world.after(0.5, world.join)
    numbers = [*range(1, 100), *range(200, 400)]
    for i, number in enumerate(numbers):
        member = world.members[rng.integers(2) if i > 60 else 0]
        world.after(i / 100, lambda member=member, number=number: member.receive(number))
    world.run(55.0)
    assert world.processed == numbers[:99]  # a minute has not passed
    world.run(90.0)
    assert world.processed == numbers


def test_a_gap_before_what_a_lost_member_had_in_hand_is_waited_for_twenty_seconds_longer() -> None:
    order: SourceOrder[int] = SourceOrder(ordered=True)
    order.arrive("gps", "car", 1, 1, 0.0)
    order.taken_elsewhere("gps", "car", 5)
    assert list(order.arrive("gps", "car", 6, 6, 0.0)) == []
    assert order.expire(60.0) == []  # 2 to 4 do not come; 5 is in another member's hands
    assert order.expire(79.9) == []
    assert order.expire(80.0) == [6]


def test_an_ordered_topics_member_that_only_hears_of_the_others_work_remembers_a_bounded_part_of_it() -> None:
    order: SourceOrder[int] = SourceOrder(ordered=True)
    for number in range(50_000, 150_000):
        order.taken_elsewhere("gps", "car", number)
        order.done_elsewhere("gps", "car", number, number)
    order.taken_elsewhere("gps", "car", 150_000)
    assert list(order.arrive("gps", "car", 150_001, 150_001, 0.0)) == []
    marked, unmarked = NumberRanges([1, 149_999]), NumberRanges([150_000, 150_001])
    assert order.learn("gps", "car", marked, unmarked) == []  # another member has 150,000 in flight
    assert list(order.done_elsewhere("gps", "car", 150_000, 150_000)) == [150_001]


def test_a_member_that_joins_waits_for_what_the_other_has_in_hand() -> None:
    order: SourceOrder[int] = SourceOrder(adopting=True)
    assert not order.done_elsewhere("gps", "car", 7, 7)  # it came before the page that says that 7 is in flight
    assert not order.adopt([("gps", "car", 9, [5, 7])])
    assert list(order.arrive("gps", "car", 9, 9, 0.0)) == []
    assert order.expire(19.9) == []  # longer than for one that nobody is known to have
    assert list(order.done_elsewhere("gps", "car", 5, 5)) == [9]


def test_what_nobody_has_in_hand_is_waited_for_for_a_short_time_only() -> None:
    order: SourceOrder[int] = SourceOrder(adopting=True)
    order.adopt([("gps", "car", 9, [])])
    assert list(order.arrive("gps", "car", 10, 10, 0.0)) == []
    assert order.expire(4.0) == [10]


def test_what_is_held_after_too_much_was_held_has_a_limit_again() -> None:
    order: SourceOrder[int] = SourceOrder(ordered=True)
    order.arrive("gps", "car", 1, 1, 0.0)
    for number in range(3, 20_003):
        released = list(order.arrive("gps", "car", number, number, 0.0))
    assert len(released) == 20_000  # as many as fit: nothing is waited for any longer
    order.taken_elsewhere("gps", "car", 20_003)
    assert order.arrive("gps", "car", 20_004, 20_004, 100.0) == []
    assert order.expire(100.0 + 3600.0) == [20_004]


def test_marks_behind_one_that_was_lost_take_a_limited_space() -> None:
    """A member that processes nothing of a source hears of all marks but one."""
    order: SourceOrder[int] = SourceOrder()
    order.taken_elsewhere("gps", "car", 1)  # and its mark is lost
    for number in range(2, 60_000):
        order.taken_elsewhere("gps", "car", number)
        order.done_elsewhere("gps", "car", number, number)
    ((_, _, position),) = order.positions()
    assert position > 20_000
    assert order.arrive("gps", "car", 60_000, 60_000, 0.0) == (60_000,)


def test_many_marks_at_once_behind_one_that_was_lost() -> None:
    order: SourceOrder[int] = SourceOrder()
    order.taken_elsewhere("gps", "car", 1)
    order.done_elsewhere("gps", "car", 2, 1 << 50)
    assert order.arrive("gps", "car", (1 << 50) + 1, 7, 0.0) == (7,)


def test_a_late_arrival_does_not_hide_that_a_newer_one_came() -> None:
    order: SourceOrder[int] = SourceOrder()
    order.arrive("gps", "car", 7, 7, 0.0)
    order.arrive("gps", "car", 2, 2, 0.0)  # redelivered
    assert order.taken_elsewhere("gps", "car", 8)  # that member waits for the mark of 7
