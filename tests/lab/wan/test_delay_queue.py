"""When packets are due: against a literal oracle, and each property of a settings for itself."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.lab.wan import LinkSettings
from nearcast.lab.wan.delay_queue import BUFFER_SECONDS, DelayQueue, Link

PACKET = bytes(1000)
EVERYTHING = 1 << 30

links = st.builds(
    LinkSettings,
    delay_ms=st.floats(10, 50),
    jitter_ms=st.floats(0, 10),
    loss=st.sampled_from([0.0, 0.3]),
    mbit=st.sampled_from([None, 1.0, 100.0]),
)


def arrivals(link: Link, times: list[float], size: int = 1000) -> list[float | None]:
    return [link.due(now, size) for now in times]


@given(st.lists(links, min_size=1, max_size=4), st.data())
def test_packets_leave_as_a_list_sorted_by_due_time_would(some_links: list[LinkSettings], data: st.DataObject) -> None:
    """The oracle: twin links say when each packet is due; all are sorted, whatever is due by now has left."""
    links = [Link(settings, exit=number, number=number) for number, settings in enumerate(some_links)]
    twins = [Link(settings, exit=number, number=number) for number, settings in enumerate(some_links)]
    steps = data.draw(st.lists(st.tuples(st.floats(0, 0.02), st.integers(0, len(links) - 1)), min_size=1, max_size=60))
    delay_queue, now = DelayQueue(), 100.0
    expected: list[tuple[float, int, bytes]] = []
    for step, (wait, number) in enumerate(steps):
        now += wait
        delay_queue.enter(links[number], now, packet := step.to_bytes(100))
        if (due := twins[number].due(now, 100)) is not None:
            expected.append((due, number, packet))
        # Between links the order of what is due at once is free; within a link it is not.
        gone = sorted((e for e in expected if e[0] <= now), key=lambda e: e[1])
        left = sorted(delay_queue.leave(now, EVERYTHING), key=lambda each: each[0])
        assert left == [(number, packet) for _, number, packet in gone]
        expected = [e for e in expected if e[0] > now]
        assert delay_queue.next_due() == (min(expected)[0] if expected else None)
    assert len(delay_queue.leave(1e9, EVERYTHING)) == len(expected)
    assert delay_queue.next_due() is None
    assert sum(link.sent + link.lost for link in links) == len(steps)


@given(links, st.lists(st.floats(0, 0.01), min_size=2, max_size=100))
def test_order_is_kept_and_nothing_is_early(settings: LinkSettings, gaps: list[float]) -> None:
    link, now, last = Link(settings, exit=0), 5.0, 0.0
    for gap in gaps:
        now += gap
        due = link.due(now, 1000)
        if due is not None:
            assert due >= last
            assert due >= now + (settings.delay_ms - settings.jitter_ms) / 1000 - 1e-9
            last = due


def test_a_plain_link_delays_by_its_delay() -> None:
    assert arrivals(Link(LinkSettings(25.0), exit=0), [1.0, 1.0, 1.5]) == pytest.approx([1.025, 1.025, 1.525])


@pytest.mark.parametrize("packets_per_second", [10, 10_000])
def test_jitter_keeps_the_mean_however_busy_the_link(packets_per_second: int) -> None:
    link = Link(LinkSettings(50.0, jitter_ms=5.0), exit=0, seed=1)
    times = [n / packets_per_second for n in range(20 * packets_per_second)]
    delays = [due - now for now, due in zip(times, arrivals(link, times), strict=True) if due is not None]
    assert statistics.mean(delays) == pytest.approx(0.050, abs=0.0005)
    assert min(delays) >= 0.045 - 1e-9
    assert max(delays) <= 0.055 + 1e-9
    assert statistics.stdev(delays) > 0.002


def test_loss_is_the_share_set_and_the_seed_repeats_it() -> None:
    times = [n / 1000 for n in range(20_000)]
    first, again, other = (
        [due is None for due in arrivals(Link(LinkSettings(5.0, loss=0.05), exit=0, seed=seed), times)]
        for seed in (7, 7, 8)
    )
    assert sum(first) / len(first) == pytest.approx(0.05, abs=0.005)
    assert first == again
    assert first != other


def test_bandwidth_spaces_packets_and_loses_what_the_buffer_does_not_hold() -> None:
    link = Link(LinkSettings(10.0, mbit=8.0), exit=0)  # 8 Mbit/s: 1000 bytes take 1 ms
    dues = arrivals(link, [2.0] * 150)
    passed = [due for due in dues if due is not None]
    assert passed == pytest.approx([2.0 + 0.010 + 0.001 * (n + 1) for n in range(len(passed))])
    assert len(passed) == pytest.approx(BUFFER_SECONDS / 0.001, abs=2)
    assert all(due is None for due in dues[len(passed) :])
    assert link.due(3.0, 1000) == pytest.approx(3.011)


def test_cutting_loses_what_is_on_its_way_and_healing_waits_for_nothing() -> None:
    link, other, delay_queue = (
        Link(LinkSettings(500.0), exit=1, number=1),
        Link(LinkSettings(20.0), exit=2, number=2),
        DelayQueue(),
    )
    delay_queue.enter(link, 0.0, b"lost")
    delay_queue.enter(other, 0.0, b"kept")
    delay_queue.change(link, LinkSettings(500.0, cut=True))
    delay_queue.enter(link, 0.1, b"lost too")
    assert delay_queue.leave(10.0, EVERYTHING) == [(2, b"kept")]
    delay_queue.change(link, LinkSettings(10.0))
    delay_queue.enter(link, 0.2, b"after")
    assert delay_queue.next_due() == pytest.approx(0.210)
    assert delay_queue.leave(10.0, EVERYTHING) == [(1, b"after")]
    assert (link.sent, link.lost) == (1, 2)


def test_a_shorter_delay_does_not_overtake_what_is_on_its_way() -> None:
    link = Link(LinkSettings(100.0), exit=0)
    assert link.due(1.0, 100) == pytest.approx(1.100)
    link.change(LinkSettings(10.0))
    assert link.due(1.01, 100) == pytest.approx(1.100)
    assert link.due(1.2, 100) == pytest.approx(1.210)


def test_a_batch_is_bounded_and_the_rest_stays_due() -> None:
    link, delay_queue = Link(LinkSettings(1.0), exit=3), DelayQueue()
    for n in range(10):
        delay_queue.enter(link, 0.0, bytes([n]))
    assert [packet[0] for _, packet in delay_queue.leave(1.0, 4)] == [0, 1, 2, 3]
    assert delay_queue.next_due() == pytest.approx(0.001)
    assert [packet[0] for _, packet in delay_queue.leave(1.0, EVERYTHING)] == [4, 5, 6, 7, 8, 9]
