"""Make before break, without a network."""

from __future__ import annotations

import itertools

from nearcast.client.coordination import rehoming as rh

GO = rh.Commanded(3, "b", "nats://b")


def test_the_new_connection_is_ready_before_the_old_one_closes() -> None:
    machine = rh.Rehoming("a")
    assert machine.handle(GO) == [rh.Open("nats://b")]
    assert machine.handle(rh.Opened()) == [rh.Resubscribe()]
    assert machine.handle(rh.Resubscribed()) == [rh.Switch(), rh.MoveOutcome("", 3), rh.Wait()]
    assert machine.home == "b"
    assert machine.handle(rh.Settled()) == [rh.Close("old")]


def test_a_new_home_that_cannot_be_reached_changes_nothing() -> None:
    machine = rh.Rehoming("a")
    machine.handle(GO)
    assert machine.handle(rh.Lost("refused")) == [rh.MoveOutcome("b: refused", 3)]
    assert machine.home == "a"
    machine.handle(GO)
    machine.handle(rh.Opened())
    assert machine.handle(rh.Lost("gone")) == [rh.Close("new"), rh.MoveOutcome("b: gone", 3)]
    assert machine.home == "a"


def test_a_deposed_coordinator_is_refused_and_a_repeated_command_is_answered() -> None:
    machine = rh.Rehoming("a")
    assert machine.handle(rh.Commanded(3, "a", "nats://a")) == [rh.MoveOutcome("", 3)]
    assert machine.handle(rh.Commanded(2, "b", "nats://b")) == [rh.MoveOutcome("term 2 is over; term 3 leads", 3)]
    machine.handle(GO)
    assert machine.handle(rh.Commanded(3, "c", "nats://c")) == [rh.MoveOutcome("is on its way to b", 3)]


def test_no_order_of_events_closes_the_only_connection() -> None:
    events = [GO, rh.Opened(), rh.Resubscribed(), rh.Settled(), rh.Lost("x"), rh.Commanded(4, "a", "nats://a")]
    for order in itertools.product(events, repeat=5):
        machine = rh.Rehoming("a")
        connections = {"old"}  # of the client: `old` is the one it has, `new` the one it makes
        publishing = "old"
        for event in order:
            if isinstance(event, rh.Opened) and machine.phase == "opening":
                connections.add("new")
            for instruction in machine.handle(event):
                match instruction:
                    case rh.Switch():
                        publishing = "new"
                    case rh.Close("old"):
                        assert publishing == "new"
                        assert "new" in connections
                        connections, publishing = {"old"}, "old"  # the new one is now the one it has
                    case rh.Close("new"):
                        assert publishing == "old"
                        connections.discard("new")
            assert publishing in connections
