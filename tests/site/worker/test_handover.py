"""Handover without a network: every order of events in a small world loses nothing and repeats nothing."""

from __future__ import annotations

import pytest
from tests.site.worker.handover_world import LATE, World, explore, host, leave, members

from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.protocol.worker import HostTopic, LeaveTopic, SpoolEntry, SpoolPage, SpoolPageRequest
from nearcast.site.worker import handover_events as ho
from nearcast.site.worker.handover import HandoverMachine

ONE, TWO = (("p", ho.HandoverMessage("gps", b"%d" % n, b"payload %d" % n)) for n in (1, 2))
WITHOUT_ID = ("p", ho.HandoverMessage("gps", b"", b"payload"))
MOVE = (["a"], [host("b", 2, "a"), leave("a", 2, "b")], "b", {})
# Members before, commands in order, members afterwards, and what else the world is to be like.
SCENARIOS = {
    "move": MOVE,
    "rolled back": (["a"], [host("b", 2, "a"), leave("b", 3, "a")], "a", {}),
    "one more member": (["a"], [host("b", 2, "a"), members("a", 2, 2), members("b", 2, 2)], "ab", {}),
    "one member fewer": (["a", "c"], [leave("a", 2, "c"), members("c", 2, 1)], "c", {"workers": "ac"}),
    "move beside a third member": (
        ["a", "c"],
        [host("b", 2, "a", "ac"), leave("a", 2, "b")],
        "bc",
        {"workers": "abc", "preference": "cab"},
    ),
    "back before it was gone": (
        ["a"],
        [host("b", 2, "a"), leave("a", 2, "b"), host("a", 3, "b"), leave("b", 3, "a")],
        "a",
        {},
    ),
    "on to a third worker": (
        ["a"],
        [host("b", 2, "a"), leave("a", 2, "b"), host("c", 3, "b"), leave("b", 3, "c")],
        "c",
        {"workers": "abc", "patient": True},
    ),
    "commands twice": (
        ["a"],
        [host("b", 2, "a"), host("b", 2, "a"), leave("a", 2, "b"), leave("a", 2, "b")],
        "b",
        {},
    ),
}


def outcomes(world: World) -> set[tuple[tuple[int, ...], str, int]]:
    """For all ends: how often each publication was processed, who has the topic, how many commands were refused."""
    return {
        (
            tuple(end.processed[publication.payload] for publication in end.sent),
            "".join(sorted(end.owners)),
            sum(bool(reason) for _, reason in end.answers),
        )
        for end in explore(world)
    }


@pytest.mark.parametrize("publication", [ONE, WITHOUT_ID], ids=["id", "no id"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_order_of_events_processes_a_publication_once(name: str, publication: tuple) -> None:
    before, script, after, options = SCENARIOS[name]
    assert outcomes(World(before, script, [publication], **options)) == {((1,), after, 0)}


@pytest.mark.parametrize(
    ("publications", "options"),
    [([ONE, TWO], {}), ([ONE], {"slow_locally": True}), ([ONE], {"ticks_under_way": 1}), ([ONE], {"preference": "ba"})],
    ids=["two publications", "slow to the broker", "under way when a timer fires", "new member first"],
)
def test_every_order_of_events_in_other_worlds(publications: list, options: dict) -> None:
    assert outcomes(World(*MOVE[:2], publications, **options)) == {((1,) * len(publications), "b", 0)}


def test_two_that_leave_at_once_hand_over_a_publication_once() -> None:
    script = [host("b", 2, "a", "ac"), leave("a", 2, "b"), leave("c", 2, "b")]
    assert outcomes(World(["a", "c"], script, [ONE], workers="abc")) == {((1,), "b", 0)}


def test_what_is_left_for_nobody_is_processed_at_most_once() -> None:
    assert outcomes(World(["a"], [leave("a", 2, None)], [ONE])) == {((0,), "", 0), ((1,), "", 0)}


@pytest.mark.parametrize("crashing", ["a", "b"])
def test_a_crash_at_any_point_leaves_one_agreed_member_that_processes_what_comes_later(crashing: str) -> None:
    late = ("p", ho.HandoverMessage("gps", LATE, b"late"))
    owners = set()
    for end in explore(World(*MOVE[:2], [ONE, late], crashing=crashing)):
        assert end.processed[b"late"] == 1
        assert end.owners == set(end.hosting)
        owners |= {*end.owners}
    assert owners == {"a", "b"}  # before it joined, and afterwards


def machine(*events: ho.Event) -> tuple[HandoverMachine, list[ho.Instruction]]:
    """A machine after some events, and what it said to the last."""
    made, said = HandoverMachine("gps"), []
    for event in events:
        said = made.handle(event, 0.0)
    return made, said


HOST = HostTopic(TopicSpec("gps", ("a",)), 2, WorkerId("a", "w"))
LEAVE = LeaveTopic("gps", 2, WorkerId("b", "w"))
JOINED = (HOST, ho.Subscribed("copies"), ho.PageReceived(SpoolPage()), ho.Subscribed("queue"))
LEFT = (*JOINED, LEAVE, ho.Subscribed("plain"), ho.Drained("queue"))


def test_joining_copies_the_spool_and_then_the_copies_that_came_meanwhile() -> None:
    joining, said = machine(HOST, ho.Subscribed("copies"))
    assert said == [ho.FetchPage(WorkerId("a", "w"), SpoolPageRequest("gps"))]
    assert not joining.take_copy("gps", b"2", b"", 0.0)
    assert not joining.take_copy("gps", b"1", b"", 0.0)
    more = SpoolPage([SpoolEntry("gps", 7, b"0", b"")], more=True)
    assert joining.handle(ho.PageReceived(more), 0.0) == [
        ho.Keep(ho.HandoverMessage("gps", b"0", b"")),
        ho.FetchPage(WorkerId("a", "w"), SpoolPageRequest("gps", ("gps", 7))),
    ]
    assert joining.handle(ho.PageReceived(SpoolPage([SpoolEntry("gps", 8, b"1", b"")])), 0.0) == [
        ho.Keep(ho.HandoverMessage("gps", b"1", b"")),
        ho.Keep(ho.HandoverMessage("gps", b"2", b"")),
        ho.Subscribe("queue"),
    ]
    assert joining.handle(ho.Subscribed("queue"), 0.0) == [ho.Done(HOST)]


def test_a_spool_that_does_not_come_refuses_the_command_and_forgets_the_topic() -> None:
    joining, said = machine(HOST, ho.Subscribed("copies"), ho.CopyFailed("a/w sends no spool"))
    assert said == [ho.Drain("copies")]
    assert joining.handle(ho.Drained("copies"), 0.0) == [ho.AwaitIdle()]
    assert joining.handle(ho.Idle(), 0.0) == [ho.Refuse(HOST, "a/w sends no spool"), ho.Forget()]


def test_older_epochs_and_a_topic_that_is_still_copied_are_not_left() -> None:
    older = LeaveTopic("gps", 1, WorkerId("b", "w"))
    assert machine(*JOINED, older)[1] == [ho.Refuse(older, "topic gps is held with epoch 2, newer than 1")]
    assert machine(HOST, LEAVE)[1] == [ho.Refuse(LEAVE, "topic gps is still being copied here")]


def test_a_topic_that_comes_back_while_it_leaves_is_hosted_again_unless_it_is_recalled() -> None:
    back = HostTopic(TopicSpec("gps", ("a",)), 3, WorkerId("b", "w"))
    again = LeaveTopic("gps", 3, WorkerId("c", "w"))
    end = (ho.SettleOver(), ho.Drained("plain"), ho.HoldOver(), ho.Drained("copies"), ho.Idle())
    assert machine(*LEFT, back, *end)[1] == [ho.Forget((back,))]
    leaving, said = machine(*LEFT, back, again)
    assert said == [ho.Refuse(back, "topic gps was left with epoch 3"), ho.Done(again)]
    assert [leaving.handle(event, 0.0) for event in end][-1] == [ho.Forget()]


def test_what_is_handed_over_at_the_last_moment_is_forwarded_before_the_topic_is_forgotten() -> None:
    late = ho.HandoverMessage("gps", b"", b"payload")
    end = (ho.SettleOver(), ho.Drained("plain"), ho.HandedOver(late), ho.HoldOver(), ho.Drained("copies"))
    leaving, said = machine(*LEFT, *end, ho.Idle())
    assert said == [ho.StartTimer(0.5, ho.HoldOver())]
    assert leaving.handle(ho.HoldExpired(late), 0.0) == [ho.Forward(WorkerId("b", "w"), late)]
    assert leaving.handle(ho.HoldOver(), 0.0) == [ho.AwaitIdle()]
    assert leaving.handle(ho.Idle(), 0.0) == [ho.Forget()]
