"""The leases of sites in a simulated world: delays, losses, crashes, new leaders, clocks of different speed."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Answer:
    report: Report
    lease_s: float
    revision: int


@dataclass
class Site:
    speed: float
    lease: SiteLeaseMachine = field(default_factory=SiteLeaseMachine)
    number: int = 0
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
        self.sites = {name: Site(speed) for name, speed in zip(SITES, speeds, strict=True)}
        self.owner, self.epoch, self.revision = "west", 1, 1
        self.giving: Giving | None = None
        self.network: list[Report | Answer] = []
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
        self.speed, self.leases = speed, SiteLeases(LOST_AFTER)
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
        self.network.append(Report(name, site.number, self.now * site.speed))

    @precondition(lambda self: self.network)
    @rule(position=st.integers(0, 100))
    def lose(self, position: int) -> None:
        del self.network[position % len(self.network)]

    @precondition(lambda self: self.network)
    @rule(position=st.integers(0, 100))
    def deliver(self, position: int) -> None:
        message = self.network.pop(position % len(self.network))
        if isinstance(message, Report):
            self.leases.heard(message.site, self.now * self.speed)
            self.network.append(Answer(message, self.leases.grant(message.site), self.revision))
            return
        site = self.sites[message.report.site]
        if message.report.number != site.number:  # it is late
            return
        if not site.lease.renewed(message.report.sent, message.lease_s, self.now * site.speed):
            site.reconciling = message

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
        site.lease, site.reconciling = SiteLeaseMachine(), None
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


@pytest.mark.parametrize("seed", range(4))
def test_no_two_sites_may_own_a_topic_in_thousands_of_schedules(seed: int) -> None:
    """The same world, walked at random: more schedules than Hypothesis, which shrinks what it finds, has time for."""
    random = Random(seed)
    for _ in range(1000):
        world = Leases()
        world.begin(tuple(random.choice((0.96, 1.0, 1.04)) for _ in SITES), random.choice((0.96, 1.0, 1.04)))
        for _ in range(60):
            step = random.choices(range(9), (4, 6, 1, 12, 4, 1, 1, 4, 6))[0]
            name = random.choice(SITES)
            if step == 0:
                world.wait(random.choice((0.1, 1.0, 5.0, 17.0, 18.5, 19.3, 20.9)))
            elif step == 1:
                world.report(name)
            elif step in (2, 3) and world.network:
                (world.lose if step == 2 else world.deliver)(random.randrange(100))
            elif step == 4:
                world.reconcile(name)
            elif step == 5:
                world.crash_and_start(name)
            elif step == 6:
                world.another_leader(random.choice((0.96, 1.0, 1.04)))
            elif step == 7 and world.giving is None:
                world.give_away(name)
            elif step == 8 and world.giving is not None:
                world.continue_giving()
            world.one_owner()


def test_a_lease_goes_on_with_each_answer_and_ends_without() -> None:
    lease, leases = SiteLeaseMachine(), SiteLeases(LOST_AFTER)
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
    assert not leases.withhold({"west"}, 20.0)  # it is not lost yet
    assert leases.withhold({"west"}, 20.1)
    leases.heard("west", 20.2)
    assert leases.grant("west") == 0.0
    assert leases.withhold({"west"}, 40.5)  # a second topic of the same site
    leases.release({"west"})
    assert leases.grant("west") == 0.0
    leases.release({"west"})
    assert leases.grant("west") == 18.0
