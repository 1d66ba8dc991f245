"""Who moved in vain moves again only when it stays late."""

from __future__ import annotations

from nearcast.coordinator.hysteresis import Hysteresis


def test_a_topic_that_moves_again_too_soon_needs_ever_more_patience() -> None:
    hysteresis = Hysteresis()
    hysteresis.moved("topic gps", 0.0)
    hysteresis.observe({"gps"}, 4.0)
    assert hysteresis.held(4.0) == set()  # nothing says yet that its moves do not last
    hysteresis.moved("topic gps", 4.0)
    hysteresis.observe(set(), 5.0)
    assert hysteresis.held(5.0) == {"topic gps"}  # it is not late
    hysteresis.observe({"gps"}, 8.0)
    assert hysteresis.held(8.9) == {"topic gps"}
    assert hysteresis.held(9.0) == set()  # late for 1 s
    hysteresis.moved("topic gps", 9.0)
    hysteresis.observe({"gps"}, 10.0)
    assert hysteresis.held(10.9) == {"topic gps"}
    assert hysteresis.held(11.0) == set()  # late for 2 s, all after its last move


def test_a_topic_is_just_late_for_a_report_period() -> None:
    hysteresis = Hysteresis()
    hysteresis.observe({"gps"}, 10.0)
    assert hysteresis.just_late(14.9) == {"gps"}
    assert hysteresis.just_late(15.0) == set()
    hysteresis.observe(set(), 16.0)
    hysteresis.observe({"gps"}, 17.0)
    assert hysteresis.just_late(17.0) == {"gps"}


def test_a_topic_whose_moves_last_is_never_held() -> None:
    hysteresis = Hysteresis()
    for now in range(0, 200, 20):
        hysteresis.observe({"gps"}, float(now))
        assert hysteresis.held(float(now)) == set()
        hysteresis.moved("topic gps", float(now))
        hysteresis.observe(set(), now + 1.0)


def test_time_without_trouble_shortens_the_wait() -> None:
    hysteresis = Hysteresis()
    for now in (0.0, 2.0, 4.0, 6.0):
        hysteresis.moved("topic gps", now)
    hysteresis.observe({"gps"}, 12.0)
    assert hysteresis.held(15.9) == {"topic gps"}
    assert hysteresis.held(16.0) == set()
    hysteresis.observe(set(), 20.0)
    hysteresis.observe({"gps"}, 23.0)  # late for the last time 11 s ago: a wait of 2 s instead of 4
    assert hysteresis.held(24.9) == {"topic gps"}
    assert hysteresis.held(25.0) == set()
    hysteresis.observe(set(), 26.0)
    hysteresis.observe({"gps"}, 50.0)
    assert hysteresis.held(50.0) == set()


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
    assert hysteresis.held(3.9) == {"client car"}
    assert hysteresis.held(4.0) == set()
    hysteresis.observe(set(), 62.5)
    hysteresis.moved("client car", 63.0)
    assert hysteresis.held(63.0) == set()


def test_a_device_that_swings_every_three_seconds_moves_its_topic_a_few_times_and_then_no_more() -> None:
    hysteresis, moves = Hysteresis(), []
    topic_side = 0
    for tick in range(6000):  # ten minutes in steps of 0.1 s
        now = tick / 10
        device = int(now // 3) % 2
        late = device != topic_side
        hysteresis.observe({"gps"} if late else set(), now)
        if late and "topic gps" not in hysteresis.held(now):
            hysteresis.moved("topic gps", now)
            topic_side = device
            moves.append(now)
    assert len(moves) <= 5  # 199 without


def test_a_client_that_swings_moves_ever_more_rarely() -> None:
    hysteresis, moves, side = Hysteresis(), 0, 0
    for tick in range(1200):
        now = tick / 10
        hysteresis.observe(set(), now)
        if int(now // 3) % 2 != side and "client car" not in hysteresis.held(now):
            hysteresis.moved("client car", now)
            side, moves = 1 - side, moves + 1
    assert moves <= 9  # 39 without
