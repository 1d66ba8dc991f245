"""Who moved often lately moves again only when it stays late."""

from __future__ import annotations

from nearcast.coordinator.hysteresis import Hysteresis


def test_the_first_two_moves_are_free_and_each_further_one_needs_twice_the_patience() -> None:
    hysteresis = Hysteresis()
    hysteresis.moved("topic gps", 0.0)
    hysteresis.observe({"gps"}, 5.0)
    assert hysteresis.held(5.0) == set()
    hysteresis.moved("topic gps", 5.0)
    hysteresis.observe(set(), 6.0)
    assert hysteresis.held(6.0) == {"topic gps"}  # it is not late
    hysteresis.observe({"gps"}, 10.0)
    assert hysteresis.held(11.9) == {"topic gps"}
    assert hysteresis.held(12.0) == set()  # late for 2 s
    hysteresis.moved("topic gps", 12.0)
    hysteresis.observe({"gps"}, 13.0)
    assert hysteresis.held(15.9) == {"topic gps"}
    assert hysteresis.held(16.0) == set()  # late for 4 s, all after its last move


def test_a_topic_that_is_late_now_and_then_is_not_late_without_a_break() -> None:
    hysteresis = Hysteresis()
    for now in (0.0, 1.0, 2.0):
        hysteresis.moved("topic gps", now)
    for now in range(3, 50, 2):
        hysteresis.observe({"gps"}, float(now))
        assert hysteresis.held(now + 0.9) == {"topic gps"}
        hysteresis.observe(set(), now + 1.0)


def test_moves_are_forgotten_after_a_minute_and_clients_wait_without_being_late() -> None:
    hysteresis = Hysteresis()
    for now in (0.0, 1.0, 2.0):
        hysteresis.moved("client car", now)
    assert hysteresis.held(5.9) == {"client car"}
    assert hysteresis.held(6.0) == set()
    hysteresis.observe(set(), 62.5)
    hysteresis.moved("client car", 63.0)
    assert hysteresis.held(63.0) == set()


def test_a_device_that_swings_every_three_seconds_moves_its_topic_a_few_times_a_minute() -> None:
    hysteresis, moves, late_side = Hysteresis(), 0, 0
    topic_side = 0
    for tick in range(600):  # a minute in steps of 0.1 s
        now = tick / 10
        device = int(now // 3) % 2
        late = device != topic_side
        hysteresis.observe({"gps"} if late else set(), now)
        if late and "topic gps" not in hysteresis.held(now):
            hysteresis.moved("topic gps", now)
            topic_side, moves = device, moves + 1
        late_side += late
    assert moves <= 4  # 19 without
