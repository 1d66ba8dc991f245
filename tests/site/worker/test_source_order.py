"""Order per publisher: held until the missing one came, was marked elsewhere, or long enough."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.site.worker.source_order import SourceOrder


class Intake:
    """Publications of one source in the order they are processed."""

    def __init__(self, *, ordered: bool = False) -> None:
        self.order: SourceOrder[int] = SourceOrder(ordered=ordered)
        self.processed: list[int] = []

    def arrive(self, *numbers: int, now: float = 0.0, late: bool = False) -> list[int]:
        for number in numbers:
            self.processed += self.order.arrive("gps", "car", number, number, now, late=late)
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


def test_where_order_is_asked_for_a_new_owner_gives_the_stores_time() -> None:
    intake = Intake(ordered=True)
    assert intake.arrive(50, 51) == []
    assert intake.arrive(49, 47, now=2.0, late=True) == []
    assert intake.arrive(48, now=3.0, late=True) == []
    assert intake.order.expire(8.9) == []  # more may come
    assert intake.order.expire(9.0) == [47, 48, 49, 50, 51]
    assert intake.arrive(53, now=9.0) == []
    assert intake.order.expire(60.0) == []
    assert intake.arrive(52, now=60.0) == [52, 53]
    assert Intake(ordered=True).arrive(1, 2) == [1, 2]


def test_a_new_owner_to_whom_stores_give_for_long_waits_a_minute_at_most() -> None:
    intake = Intake(ordered=True)
    for now in range(60):
        assert intake.arrive(100 - now, now=float(now), late=True) == []
        assert intake.order.expire(float(now)) == []
    assert intake.order.expire(60.0) == list(range(41, 101))


@settings(max_examples=500)
@given(st.lists(st.tuples(st.sampled_from("amx"), st.integers(1, 6)), max_size=30))
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

    def __init__(self, world: SiteWorld, *, adopting: bool = False) -> None:
        self.world, self.order = world, SourceOrder[int](adopting=adopting)
        self.in_hand: set[int] = set()
        self.unmarked: list[int] = []
        self.hurries = False

    def receive(self, number: int) -> None:
        self.in_hand.add(number)
        self.world.after(0.002, lambda: self.peer.copied(number))
        self.process(self.order.arrive("gps", "car", number, number, self.world.now))

    def copied(self, number: int) -> None:
        if self.order.taken_elsewhere("gps", "car", number):
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
        self.in_hand -= set(marked)
        self.world.after(0.002, lambda: self.peer.marked(marked))

    def marked(self, numbers: list[int]) -> None:
        for number in numbers:
            self.process(list(self.order.done_elsewhere("gps", "car", number, number)))

    def tick(self) -> None:
        self.publish()
        self.process(self.order.expire(self.world.now))
        self.world.after(0.1, self.tick)

    @property
    def peer(self) -> Member:
        return self.world.members[self.world.members[0] is self]


class SiteWorld:
    """A broker that gives each publication to either of two workers, and a clock."""

    def __init__(self) -> None:
        self.now, self._events, self._count = 0.0, list[tuple[float, int, Callable[[], None]]](), itertools.count()
        self.processed: list[int] = []
        self.members = [Member(self), Member(self, adopting=True)]
        for member in self.members:
            self.after(0.1, member.tick)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), action))

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

    def join() -> None:
        positions = [(*position, set(old.in_hand)) for position in old.order.positions()]
        world.after(0.002, lambda: new.process(new.order.adopt(positions)))

    world.after(0.5, join)
    for number in range(1, 601):
        at = number / 300
        member = old if at < 0.51 else new if at > 1.51 else world.members[rng.integers(2)]
        world.after(at, lambda member=member, number=number: member.receive(number))
    world.run(2.5)
    assert world.processed == list(range(1, 601))


def test_a_member_that_joins_waits_for_what_the_other_has_in_hand() -> None:
    order: SourceOrder[int] = SourceOrder(adopting=True)
    assert not order.done_elsewhere("gps", "car", 7, 7)  # it came before the page that says that 7 is in hand
    assert not order.adopt([("gps", "car", 9, [5, 7])])
    assert list(order.arrive("gps", "car", 9, 9, 0.0)) == []
    assert order.expire(19.9) == []  # longer than for one that nobody is known to have
    assert list(order.done_elsewhere("gps", "car", 5, 5)) == [9]


def test_what_nobody_has_in_hand_is_waited_for_for_a_short_time_only() -> None:
    order: SourceOrder[int] = SourceOrder(adopting=True)
    order.adopt([("gps", "car", 9, [])])
    assert list(order.arrive("gps", "car", 10, 10, 0.0)) == []
    assert order.expire(4.0) == [10]
