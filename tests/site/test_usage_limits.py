"""Token buckets over what a broker counts: who is closed, and who is not."""

from __future__ import annotations

from nearcast.nats.identity.tokens import AccessLimits, limit_tags, tagged_limits
from nearcast.site.usage_limits import Sender, Sent, Tenant, UsageLimits

SLOW = AccessLimits(messages_per_second=100, bytes_per_second=10_000)
CAR7, CAR8 = Sender("A", "car7", SLOW), Sender("A", "car8", SLOW)


def test_tags_carry_the_limits_that_sites_enforce() -> None:
    limits = AccessLimits(connections=2, messages_per_second=0.5, bytes_per_second=1_234_567)
    assert tagged_limits(["role:device", *limit_tags(limits)]) == limits
    assert tagged_limits(["rate:", "bytes:-3", "rate:nan", "connections:x", 7]) == AccessLimits()  # type: ignore[list-item]


def test_who_keeps_to_its_rate_stays_for_ever() -> None:
    limits = UsageLimits()
    assert not limits.connected(1, CAR7, 0.0)
    for second in range(1, 1000):
        assert not limits.measured({1: Sent(100 * second, 10_000 * second)}, second, second)
    assert limits.needed


def test_a_burst_after_an_outage_is_no_flood() -> None:
    limits = UsageLimits()
    limits.connected(1, CAR7, 0.0)
    assert not limits.measured({1: Sent(4000, 400_000)}, 0.5, 0.5)


def test_who_floods_is_closed_everywhere_and_at_once_when_it_comes_back() -> None:
    limits = UsageLimits()
    limits.connected(1, CAR7, 0.0)
    limits.connected(2, CAR7, 0.0)
    limits.connected(3, CAR8, 0.0)
    closed = limits.measured({1: Sent(100_000, 0), 2: Sent(), 3: Sent(90, 0)}, 1.0, 1.0)
    assert [(one.cid, one.reason) for one in closed] == [(cid, "car7 sent more than 100 messages/s") for cid in (1, 2)]
    [again] = limits.connected(4, CAR7, 1.1)
    assert (again.cid, again.reason) == (4, "")
    assert limits.closed == {CAR7.key: 2}
    assert not limits.connected(6, CAR8, 1.1)


def test_who_floods_again_stays_out_longer() -> None:
    limits, now, cid = UsageLimits(), 0.0, 0
    for seconds in (10, 20, 40, 80, 160, 320, 600, 600):
        assert not limits.connected(cid, CAR7, now)
        [closed] = limits.measured({cid: Sent(1_000_000, 0)}, now + 1, now + 1)
        assert closed.seconds == seconds
        assert limits.connected(cid + 1, CAR7, now + seconds)
        now, cid = now + 1 + seconds, cid + 2
    now += 4000
    assert not limits.connected(cid, CAR7, now)
    [closed] = limits.measured({cid: Sent(1_000_000, 0)}, now + 1, now + 1)
    assert closed.seconds == 10, "that was long ago"


def test_bytes_count_too() -> None:
    limits = UsageLimits()
    limits.connected(1, CAR7, 0.0)
    [closed] = limits.measured({1: Sent(10, 50_000_000)}, 1.0, 1.0)
    assert "more than 10000 bytes/s" in closed.reason


def test_a_flood_of_connections_that_end_before_anybody_looks_is_counted() -> None:
    limits = UsageLimits()
    for cid in range(10):
        limits.connected(cid, CAR7, 0.0)
        limits.disconnected(cid, Sent(10_000, 0))
    limits.measured({}, 1.0, 1.0)
    assert limits.connected(11, CAR7, 1.1)


def test_what_was_sent_before_the_site_looked_does_not_count() -> None:
    limits = UsageLimits()
    limits.connected(1, CAR7, 0.0, Sent(10**9, 10**12))
    assert not limits.measured({1: Sent(10**9 + 5, 10**12)}, 1.0, 1.0)


def test_of_a_tenant_that_sends_too_much_the_busiest_user_is_closed() -> None:
    limits = UsageLimits()
    limits.set_tenants({"A": Tenant("main", AccessLimits(messages_per_second=1000)), "B": Tenant("other")})
    for cid, sender in enumerate((Sender("A", "one"), Sender("A", "two"), Sender("B", "two"))):
        limits.connected(cid, sender, 0.0)
    worker = Sender("A", "edge-worker", trusted=True)
    assert not limits.connected(9, worker, 0.0)
    counts = {0: Sent(500, 0), 1: Sent(100_000, 0), 2: Sent(10**6, 0), 9: Sent(10**9, 0)}
    [closed] = limits.measured(counts, 1.0, 1.0)
    assert closed.cid == 1
    assert closed.reason.startswith("tenant main sent more than 1000 messages/s, two most of it")


def test_connections_of_a_user_are_counted() -> None:
    limits = UsageLimits()
    two = Sender("A", "car7", AccessLimits(connections=2))
    assert [bool(limits.connected(cid, two, 0.0)) for cid in (1, 2, 3)] == [False, False, True]
    limits.disconnected(1, Sent())
    assert not limits.connected(4, two, 1.0)


def test_connections_of_a_broker_that_was_restarted_are_not_counted_twice() -> None:
    limits, single = UsageLimits(), Sender("A", "car7", AccessLimits(connections=1))
    assert not limits.connected(7, single, 0.0)
    limits.forget_connections()
    assert not limits.connected(1, single, 1.0)


def test_an_mqtt_device_uses_a_client_id_of_its_own() -> None:
    """With that of another device it would close its connection and take or remove its session."""
    limits = UsageLimits()
    for cid, own in enumerate(("car7", "car7/1", "JB0OEJ9PJfrJGdrK7tnGYx", "")):
        assert not limits.connected(cid, Sender("A", "car7", mqtt_client=own), 0.0)
    [closed] = limits.connected(8, Sender("A", "car7", mqtt_client="car8"), 0.0)
    assert (closed.cid, closed.seconds) == (8, 10.0)
    assert closed.reason == "its MQTT client id is 'car8'; allowed: car7, car7/…, or none"
    [again] = limits.connected(9, Sender("A", "car7", mqtt_client="car8"), 1.0)
    assert again.reason == ""
    assert limits.closed == {("A", "car7"): 1}
    assert limits.connected(10, Sender("A", "car", mqtt_client="car7"), 1.0), "the beginning of a name is not the name"
