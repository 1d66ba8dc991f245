"""The lease without a network: coordinators, a shared cell, clocks that stand still when they like."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.nats.lease import Lease, LeaseMachine

PERIOD = 3.0


class Cell:
    """The key in the store: a compare-and-set on what was last seen."""

    def __init__(self) -> None:
        self.lease: Lease | None = None

    def write(self, machine: LeaseMachine, now: float) -> bool:
        wish = machine.wish(now)
        if wish is None:
            return False
        if self.lease != machine.lease:
            machine.seen(self.lease, now)
            return False
        self.lease = wish
        machine.written(wish, now)
        return True


def test_the_first_takes_it_and_the_second_waits_a_period() -> None:
    cell, one, two = Cell(), LeaseMachine("one", PERIOD), LeaseMachine("two", PERIOD)
    assert one.wish(0) is None  # it has not looked yet
    one.seen(None, 0)
    assert cell.write(one, 0)
    assert one.leads(2.9)
    assert not one.leads(3.0)
    two.seen(cell.lease, 1)
    assert two.wish(3.9) is None
    assert two.wish(4.0) == Lease("two", 2)
    assert cell.write(two, 4.0)
    assert two.leads(4.1)
    assert two.term == 2
    one.seen(cell.lease, 4.2)
    assert not one.leads(4.2)


def test_renewals_keep_others_out() -> None:
    cell, one, two = Cell(), LeaseMachine("one", PERIOD), LeaseMachine("two", PERIOD)
    one.seen(None, 0)
    now = 0.0
    while now < 30:
        cell.write(one, now)
        two.seen(cell.lease, now)
        assert not cell.write(two, now)
        assert one.leads(now)
        now += 0.5
    assert cell.lease is not None
    assert cell.lease.term == 1


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["look", "write", "pause"])), max_size=80))
def test_two_never_lead_at_once_and_terms_only_grow(steps: list[tuple[int, str]]) -> None:
    cell = Cell()
    machines = [LeaseMachine(name, PERIOD) for name in ("a", "b", "c")]
    now, terms = 0.0, [0]
    for who, what in steps:
        now += 1.7 if what == "pause" else 0.3
        if what == "look":
            machines[who].seen(cell.lease, now)
        elif what == "write":
            cell.write(machines[who], now)
        assert sum(machine.leads(now) for machine in machines) <= 1
        if cell.lease is not None:
            assert cell.lease.term >= terms[-1]
            terms.append(cell.lease.term)
