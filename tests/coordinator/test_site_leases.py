"""The leases of sites in a simulated world: delays, losses, crashes, new leaders, clocks of different speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearcast.coordinator.site_leases import SiteLeases
from nearcast.site.site_lease import SiteLeaseMachine

LOST_AFTER = 20.0
SITES = ("west", "east", "north")
SPEEDS = st.sampled_from((0.96, 1.0, 1.04))


@dataclass(frozen=True)
class Report:
    site: str
    number: int
    sent: float  # by the site's clock
    term: int  # of the last answer
    clock: float
    witnessed: tuple[str, ...] | None


@dataclass(frozen=True)
class Answer:
    report: Report
    lease_s: float
    revision: int
    term: int
    clock: float


@dataclass(frozen=True)
class Question:
    """Whether a site may count on another one, that no coordinator leads; and the answer."""

    site: str
    asked: float
    other: str
    witnessed: bool | None = None


@dataclass
class Site:
    speed: float
    lease: SiteLeaseMachine
    number: int = 0
    term: int = 0  # of the last answer
    clock: float = 0.0
    witnesses: tuple[float, set[str]] = (0.0, set())  # of what was asked then
    owner: str = "west"  # of the topic, as far as this site knows
    epoch: int = 1
    reconciling: Answer | None = None
    hosts_move: bool = False  # it was told to start the topic, and the record does not say so yet


@dataclass
class Giving:
    """The topic is being given away. The journal has it, so that the next leader goes on."""

    lost: str
    to: str
    started: bool = False
    committed: bool = False


class Leases(RuleBasedStateMachine):
    """One topic, owned by one of three sites. `now` is the real time, which nobody in this world can read."""

    @initialize(speeds=st.tuples(SPEEDS, SPEEDS, SPEEDS), leader=SPEEDS)
    def begin(self, speeds: tuple[float, ...], leader: float) -> None:
        self.now = 1000.0
        self.sites = {
            name: Site(speed, SiteLeaseMachine(self.now * speed)) for name, speed in zip(SITES, speeds, strict=True)
        }
        self.owner, self.epoch, self.revision, self.term = "west", 1, 1, 0
        self.giving: Giving | None = None
        self.network: list[Report | Answer | Question] = []
        self.extensions = 0
        self.lead(leader)
        for name in SITES:
            self.sites[name].lease.require()
            self.report(name)
        for _ in SITES:
            self.deliver(0)
        for name in SITES:
            self.deliver(0)
            self.reconcile(name)

    def lead(self, speed: float) -> None:
        """A leader starts: it expects all sites, and goes on with the move in the journal."""
        self.speed, self.leases, self.term = speed, SiteLeases(LOST_AFTER), self.term + 1
        for name in SITES:
            self.leases.heard(name, self.now * speed)
        if self.giving is not None:
            self.leases.withhold_again({self.giving.lost})

    def may_own(self, name: str) -> bool:
        site = self.sites[name]
        return (site.owner == name or site.hosts_move) and site.lease.is_valid(self.now * site.speed)

    @rule(seconds=st.sampled_from((0.1, 1.0, 5.0, 17.0, 18.5, 19.3, 20.9)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from(SITES))
    def report(self, name: str) -> None:
        site = self.sites[name]
        site.number += 1
        now = self.now * site.speed
        witnessed = site.lease.witnessed(now)
        said = None if witnessed is None else tuple(witnessed)
        self.network.append(Report(name, site.number, now, site.term, site.clock, said))

    @rule(name=st.sampled_from(SITES))
    def ask_witnesses(self, name: str) -> None:
        site = self.sites[name]
        now = self.now * site.speed
        if site.lease.is_valid(now) and site.lease.is_unanswered(now):
            site.witnesses = (now, {name})
            self.network += [Question(name, now, other) for other in SITES if other != name]

    @precondition(lambda self: self.network)
    @rule(position=st.integers(0, 100))
    def lose(self, position: int) -> None:
        del self.network[position % len(self.network)]

    @precondition(lambda self: self.network)
    @rule(position=st.integers(0, 100))
    def deliver(self, position: int) -> None:
        message = self.network.pop(position % len(self.network))
        if isinstance(message, Question):
            self.answer_question(message)
            return
        if isinstance(message, Report):
            self.take_report(message)
            return
        site = self.sites[message.report.site]
        if message.report.number != site.number:  # it is late
            return
        site.term, site.clock = message.term, message.clock
        if not site.lease.renewed(message.report.sent, message.lease_s, self.now * site.speed):
            site.reconciling = message

    def take_report(self, report: Report) -> None:
        now = self.now * self.speed
        self.leases.heard(report.site, now)
        answered = report.clock if report.term == self.term else -inf
        self.leases.told(report.site, answered, report.witnessed, self.leases.digest)
        self.network.append(Answer(report, self.leases.grant(report.site), self.revision, self.term, now))

    def answer_question(self, question: Question) -> None:
        if question.witnessed is None:
            other = self.sites[question.other]
            witnessed = other.lease.witness(question.site, self.now * other.speed)
            self.network.append(replace(question, witnessed=witnessed))
            return
        site = self.sites[question.site]
        asked, witnesses = site.witnesses
        if question.witnessed and question.asked == asked:
            witnesses.add(question.other)
            self.extensions += site.lease.extended(asked, witnesses, SITES, self.now * site.speed)

    @rule(name=st.sampled_from(SITES))
    def reconcile(self, name: str) -> None:
        """The site fetches the records of an answer and follows them, some time after it came."""
        site = self.sites[name]
        answer, site.reconciling = site.reconciling, None
        if answer is None:
            return
        if self.revision >= answer.revision:
            site.owner, site.epoch = self.owner, self.epoch
            site.hosts_move = site.hosts_move and self.giving is not None and self.giving.to == name
        site.lease.resumed(answer.report.sent, answer.lease_s)

    @rule(name=st.sampled_from(SITES))
    def crash_and_start(self, name: str) -> None:
        """Its records are on its disk; who runs what is told anew."""
        site = self.sites[name]
        site.lease, site.reconciling = SiteLeaseMachine(self.now * site.speed), None
        site.witnesses = (0.0, set())
        site.lease.require()

    @rule(speed=SPEEDS)
    def another_leader(self, speed: float) -> None:
        self.lead(speed)

    @precondition(lambda self: self.giving is None)
    @rule(to=st.sampled_from(SITES))
    def give_away(self, to: str) -> None:
        if to != self.owner and self.leases.withhold({self.owner}, self.now * self.speed):
            self.giving = Giving(self.owner, to)

    @precondition(lambda self: self.giving is not None)
    @rule()
    def continue_giving(self) -> None:
        """Start the new member, commit, release: a step at a time."""
        assert self.giving is not None
        if not self.giving.started:
            self.giving.started = self.sites[self.giving.to].hosts_move = True
        elif not self.giving.committed:
            self.giving.committed = True
            self.owner, self.epoch, self.revision = self.giving.to, self.epoch + 1, self.revision + 1
            self.sites[self.giving.to].owner = self.giving.to
        else:
            self.leases.release({self.giving.lost})
            self.sites[self.giving.to].hosts_move = False
            self.giving = None

    @invariant()
    def one_owner(self) -> None:
        if hasattr(self, "sites"):
            owners = [name for name in SITES if self.may_own(name)]
            assert len(owners) <= 1, owners


Leases.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
test_no_two_sites_may_own_a_topic = Leases.TestCase


def endpoints(message: Report | Answer | Question) -> tuple[str, str]:
    match message:
        case Report():
            return message.site, "leader"
        case Answer():
            return "leader", message.report.site
        case _:
            pair = message.site, message.other
            return pair if message.witnessed is None else pair[::-1]


class Walk:
    """The same world in its usual course, with cuts between its parts: topics are given away, and leases go on."""

    def __init__(self, random: Random) -> None:
        self.random, self.world, self.cut = random, Leases(), set[tuple[str, str]]()
        self.world.begin(tuple(self._speed() for _ in SITES), self._speed())
        self.due = dict.fromkeys(SITES, 0.0)
        self.given = 0

    def _speed(self) -> float:
        return self.random.choice((0.96, 1.0, 1.04))

    def step(self) -> None:
        random, world = self.random, self.world
        if random.random() < 0.07:
            self._cut()
        world.wait(random.choice((0.3, 1.0, 2.0)))
        for name in SITES:
            site = world.sites[name]
            if world.now >= self.due[name]:
                unanswered = site.lease.is_unanswered(world.now * site.speed)
                self.due[name] = world.now + (1.0 if unanswered else 5.0)
                world.report(name)
                world.ask_witnesses(name)
            if random.random() < 0.01:
                world.crash_and_start(name)
        world.network = [one for one in world.network if endpoints(one) not in self.cut]
        for _ in range(2 * len(world.network)):
            if world.network and random.random() < 0.8:
                world.deliver(random.randrange(len(world.network)))
        for name in SITES:
            if random.random() < 0.7:
                world.reconcile(name)
        if random.random() < 0.02:
            world.another_leader(self._speed())
        if world.giving is not None:
            world.continue_giving()
        else:
            world.give_away(random.choice(SITES))
            self.given += world.giving is not None
        world.one_owner()

    def _cut(self) -> None:
        """Nothing, two parts of the world, or single ways."""
        random, nodes = self.random, (*SITES, "leader")
        part = {node for node in nodes if random.random() < 0.4}
        pairs = {(one, other) for one in nodes for other in nodes if (one in part) != (other in part)}
        kind = random.randrange(3)
        self.cut = set() if kind == 0 else pairs if kind == 1 else {pair for pair in pairs if random.random() < 0.5}


@pytest.mark.parametrize("seed", range(4))
def test_no_two_sites_may_own_a_topic_in_thousands_of_steps(seed: int) -> None:
    """More schedules than Hypothesis, which shrinks what it finds, has time for."""
    random, extensions, given = Random(seed), 0, 0
    for _ in range(300):
        walk = Walk(random)
        for _ in range(200):
            walk.step()
        extensions += walk.world.extensions
        given += walk.given
    assert extensions > 100  # else this shows nothing
    assert given > 50


def test_a_lease_goes_on_with_each_answer_and_ends_without() -> None:
    lease, leases = SiteLeaseMachine(0.0), SiteLeases(LOST_AFTER)
    assert lease.is_valid(1e9)  # no coordinator was ever there
    lease.require()
    assert not lease.is_valid(0.0)
    leases.heard("west", 0.1)
    lease.resumed(0.0, leases.grant("west"))
    for now in (5.0, 10.0, 15.0):
        assert lease.renewed(now, leases.grant("west"), now)
    assert lease.is_valid(15.0 + 17.9)
    assert not lease.is_valid(15.0 + 18.1)
    assert not lease.renewed(34.0, leases.grant("west"), 34.0)  # records first
    lease.resumed(34.0, leases.grant("west"))
    assert lease.is_valid(34.1)


def test_a_site_that_is_back_while_its_topic_is_given_away_waits_for_the_end() -> None:
    leases = SiteLeases(LOST_AFTER)
    leases.heard("west", 0.0)
    leases.heard("east", 19.0)
    leases.told("east", 18.0, (), leases.digest)
    assert not leases.withhold({"west"}, 20.0)  # it is not lost yet
    assert leases.withhold({"west"}, 20.1)
    leases.heard("west", 20.2)
    assert leases.grant("west") == 0.0
    leases.told("east", 39.0, (), leases.digest)
    assert leases.withhold({"west"}, 40.5)  # a second topic of the same site
    leases.release({"west"})
    assert leases.grant("west") == 0.0
    leases.release({"west"})
    assert leases.grant("west") == 18.0


def test_sites_go_on_without_a_coordinator_and_none_that_hears_few_sites_gives_their_topics_away() -> None:
    """The cloud was stopped, with the coordinators' state: all durable topics waited for it (chaos, seed 6)."""
    sites = ("cloud", "east", "north", "south", "west")
    leases = SiteLeases(LOST_AFTER)
    machines = {name: SiteLeaseMachine(-100.0) for name in sites}
    for name, machine in machines.items():
        machine.require()
        leases.heard(name, 0.0)
        machine.resumed(0.0, leases.grant(name))
        machine.renewed(0.0, leases.grant(name), 0.0)
    for now in range(1, 100):
        for name, machine in machines.items():
            if name != "cloud" and machine.is_unanswered(now):
                witnesses = {
                    other for other in sites if other not in (name, "cloud") and machines[other].witness(name, now)
                }
                machine.extended(now, {name, *witnesses}, sites, now)
    assert all(machine.is_valid(100.0) == (name != "cloud") for name, machine in machines.items())
    leases.heard("cloud", 99.0)  # it is there again, but cut off from the others, and hears itself
    leases.told("cloud", 98.0, (), leases.digest)
    assert leases.lost(100.0) == set(sites) - {"cloud"}
    assert not leases.withhold({"east"}, 100.0)
    for name in ("north", "south"):
        leases.heard(name, 100.0)
        leases.told(name, 99.0, machines[name].witnessed(100.0), leases.digest)
    assert not leases.withhold({"east"}, 100.0)  # they have just witnessed for it
    for name in ("north", "south"):
        leases.told(name, 110.0, machines[name].witnessed(111.0), leases.digest)
    leases.told("cloud", 110.0, (), leases.digest)
    assert leases.withhold({"east"}, 111.0)
    assert not machines["east"].is_valid(111.0)


def test_what_a_site_witnessed_before_it_was_started_anew_is_not_known() -> None:
    machine = SiteLeaseMachine(50.0)
    machine.renewed(50.0, 18.0, 50.0)
    assert machine.witnessed(51.0) is None
    assert not machine.witness("west", 51.0)
    assert machine.witnessed(57.0) == []
    assert machine.witness("west", 62.0)
    assert machine.witnessed(63.0) == ["west"]
    assert machine.witnessed(70.0) == []
