"""What counts as lost, late and repeated in the demonstration."""

from __future__ import annotations

import math
from collections import Counter

from nearcast.lab.demo.account import account_for, longest_gap
from nearcast.lab.demo.city import City
from nearcast.lab.demo.notes import ChannelSubscription, FedReport, Notes
from nearcast.lab.demo.wording import metres, sentence
from nearcast.lab.scenarios.clients import ClientResults

CITY = City(30.0, 1, swarms=1, drones=2)
START = 1_000.0


def us(seconds: float) -> int:
    return int((START + seconds) * 1e6)


def flight(latencies_ms: list[float | None], prefix: str) -> ClientResults:
    """Drone 0 publishes once a second; both drones listen; drone 1 gets each after its latency, drone 0 at once."""
    results = ClientResults()
    for count, latency in enumerate(latencies_ms):
        at = us(5.0 + count)
        results.published.append((0, count, at, at))
        results.received.append((0, 0, count, at))
        if latency is not None:
            results.received.append((1, 0, count, at + int(latency * 1000)))
    results.subscribed += [(drone, f"{prefix}.0", us(0), us(30)) for drone in (0, 1)]
    return results


def test_late_lost_and_repeated_deliveries_are_told_apart() -> None:
    notes = Notes(drones=flight([10.0, 50.0, None, 20.0], "swarm"), plain=flight([90.0] * 4, "plain"))
    notes.drones.received.append(notes.drones.received[-1])
    account = account_for(CITY, notes, START, 30.0)
    assert (account.lost, account.duplicated) == (1, 1)
    assert account.above == 2 / 8, "50 ms and the lost one, of 8 deliveries"
    assert account.plain_above == 4 / 8
    assert account.paths[0].notifications == 7


def test_the_longest_gap_is_that_of_one_subscriber() -> None:
    assert longest_gap(flight([0.0, None, None, 0.0], "swarm"), START, 30.0) == 3.0


def test_a_channel_owes_what_matches_since_it_was_active() -> None:
    reports = [
        FedReport("a", "fire", "harbour", 45.0, 13.0, START + 50),
        FedReport("b", "flood", "harbour", 45.0, 13.0, START + 5),
    ]
    wanted = [
        ChannelSubscription(0, "by_type", {"kind": "fire"}, START + 10),
        ChannelSubscription(0, "by_type", {"kind": "flood"}, START + 10),  # it came before
        ChannelSubscription(0, "by_area", {"zone": "harbour"}, START + 10, Counter({"a": 2})),
        ChannelSubscription(1, "near_me", {"radius": 1000.0}, START + 10),
        ChannelSubscription(2, "near_me", {"radius": 1000.0}, START + 10),
    ]
    walked = {1: [(START, 45.001, 13.0)], 2: [(START, 45.001, 13.0), (START + 55, 45.5, 13.0)]}
    notes = Notes(fed=reports, walked=walked, subscriptions=wanted)
    account = account_for(CITY, notes, START, 60.0)
    assert account.lost == 2, "by type and near person 1; person 2 may have been far away already"
    assert account.duplicated == 1


def test_a_notification_reads_as_a_sentence() -> None:
    row = {"kind": "fire", "lat": 45.0, "lon": 13.0, "seen": 0.0, "shelter": "Harbour School", "shelter_lat": 45.0137}
    said = sentence({**row, "shelter_lon": 13.0}, (45.00378, 13.0), 190.0)
    assert said == "fire, 420 m from you, 3 min ago; nearest open shelter: Harbour School, 1.1 km"
    assert sentence({**row, "shelter": None}, (45.0, 13.0), 9.0).endswith("9 s ago; no open shelter within 5 km of it")
    assert math.isclose(metres(45.0, 13.0, 46.0, 13.0), 111_195, rel_tol=1e-3)
