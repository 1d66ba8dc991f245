"""Beacons tell what a store has of a topic's last seconds, and what came late."""

from __future__ import annotations

from nearcast.nats.digest import add_digests, id_hash
from nearcast.nats.streams import StoredEntry
from nearcast.site.agent.tips import RecentSeconds

NOW = 1_000_000


def entry(second: float, number: int = 1, topic: str = "gps.a") -> StoredEntry:
    us = int(second * 1_000_000)
    return StoredEntry(number, f"ntf.{topic}", us, b"p~a:tokyo:%d:%d;0" % (us, number), b"")


def tips(recent: RecentSeconds, now: int = NOW, behind: bool = False, counted: float = 100.0):
    return recent.tips("tokyo", now, lambda family: behind and family == "gps.*", lambda family: counted)


def test_each_topic_of_a_family_has_counts_and_digests_by_second_of_message_time():
    recent = RecentSeconds()
    one, two, other = entry(NOW - 5), entry(NOW - 5 + 0.3, 2), entry(NOW - 1, 1, "gps.b")
    for stored in (one, two, other):
        recent.add("gps.*", stored, NOW)
    found = tips(recent, behind=True)
    assert found.keys() == {"gps.a", "gps.b"}
    tip = found["gps.a"]
    at = NOW - 5 - tip.second
    assert tip.behind
    assert len(tip.counts) == len(tip.digests) == 30
    assert tip.second + 29 == NOW
    assert (tip.counts[at], sum(tip.counts)) == (2, 2)
    assert tip.digests[at] == add_digests(id_hash(one.id, b""), id_hash(two.id, b""))


def test_a_message_that_is_older_than_all_seconds_is_told_by_its_id():
    recent = RecentSeconds()
    late = entry(NOW - 4000)
    recent.add("gps.*", late, NOW)
    recent.add("gps.*", entry(NOW - 5000), NOW, tell_late=False)
    assert tips(recent)["gps.a"].late == [late.id]
    assert tips(recent, NOW + 31) == {}, "told for 30 s"


def test_a_beacon_says_for_how_long_the_store_has_counted():
    recent = RecentSeconds()
    recent.add("gps.*", entry(NOW - 1), NOW)
    assert tips(recent, counted=2.5)["gps.a"].counted == 2.5
    assert tips(recent)["gps.a"].counted == 30, "no longer than the seconds that are told"


def test_late_ids_are_bounded_and_topics_without_news_are_forgotten():
    recent = RecentSeconds()
    for n in range(1000):
        recent.add("gps.*", entry(NOW - 100, n), NOW)
    assert len(tips(recent)["gps.a"].late) == 256
    assert tips(recent, NOW + 100) == {}
    assert tips(recent) == {}


def test_seconds_that_a_publisher_made_up_are_not_kept():
    """Its times are its own: each of these took memory of the agent until the year that it named.

    One whose clock is an hour ahead is no enemy: what subscribers missed of it is told at once, and not in an hour.
    """
    recent = RecentSeconds()
    for n in range(1000):
        recent.add("gps.*", entry(NOW + 1000 + n, n), NOW)
    (tip,) = tips(recent).values()
    assert tip.late == [entry(NOW + 1000 + n, n).id for n in range(744, 1000)]
    assert sum(tip.counts) == 0
    assert tips(recent, NOW + 1500) == {}
    recent.add("gps.*", entry(NOW + 2), NOW)  # a clock that is a little ahead
    assert sum(tips(recent, NOW + 2)["gps.a"].counts) == 1
