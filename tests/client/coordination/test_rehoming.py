"""Make before break, without a network."""

from __future__ import annotations

import itertools

from nearcast.client.coordination import rehoming as rh
from nearcast.protocol.control import Rehome

GO = Rehome(3, "b", "nats://b")


def test_the_new_connection_is_ready_before_the_old_one_closes() -> None:
    machine = rh.Rehoming("a")
    assert machine.handle(GO) == [rh.Open("nats://b")]
    assert machine.handle(rh.Reached.OPENED) == [rh.Step.RESUBSCRIBE]
    assert machine.handle(rh.Reached.RESUBSCRIBED) == [rh.Step.SWITCH, rh.MoveOutcome("", 3), rh.Step.WAIT]
    assert machine.home == "b"
    assert machine.handle(rh.Reached.SETTLED) == [rh.Step.CLOSE_OLD]


def test_a_new_home_that_cannot_be_reached_changes_nothing() -> None:
    machine = rh.Rehoming("a")
    machine.handle(GO)
    assert machine.handle(rh.Lost("refused")) == [rh.MoveOutcome("b: refused", 3)]
    assert machine.home == "a"
    machine.handle(GO)
    machine.handle(rh.Reached.OPENED)
    assert machine.handle(rh.Lost("gone")) == [rh.Step.CLOSE_NEW, rh.MoveOutcome("b: gone", 3)]
    assert machine.home == "a"


def test_a_deposed_coordinator_is_refused_and_a_repeated_command_is_answered() -> None:
    machine = rh.Rehoming("a")
    assert machine.handle(Rehome(3, "a", "nats://a")) == [rh.MoveOutcome("", 3)]
    assert machine.handle(Rehome(2, "b", "nats://b")) == [rh.MoveOutcome("term 2 is over; term 3 leads", 3)]
    machine.handle(GO)
    assert machine.handle(Rehome(3, "c", "nats://c")) == [rh.MoveOutcome("is on its way to b", 3)]


def test_no_order_of_events_closes_the_only_connection() -> None:
    events = [GO, *rh.Reached, rh.Lost("x"), Rehome(4, "a", "nats://a")]
    for order in itertools.product(events, repeat=5):
        machine = rh.Rehoming("a")
        connections = {"old"}  # of the client: `old` is the one it has, `new` the one it makes
        publishing = "old"
        for event in order:
            if event is rh.Reached.OPENED and machine.phase == "opening":
                connections.add("new")
            for instruction in machine.handle(event):
                match instruction:
                    case rh.Step.SWITCH:
                        publishing = "new"
                    case rh.Step.CLOSE_OLD:
                        assert publishing == "new"
                        assert "new" in connections
                        connections, publishing = {"old"}, "old"  # the new one is now the one it has
                    case rh.Step.CLOSE_NEW:
                        assert publishing == "old"
                        connections.discard("new")
            assert publishing in connections
