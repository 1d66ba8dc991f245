"""When a subscription reads which store: the detector in a simulated network, driven by Hypothesis."""

from __future__ import annotations

import random
from collections import defaultdict

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearcast.client.delivered_ids import DeliveredIds
from nearcast.client.gap_detection import MARGIN, SETTLE, GapDetector
from nearcast.nats.digest import add_digests, id_hash
from nearcast.nats.stamp import parse_stamp
from nearcast.protocol.services import Tip

SITES = ("x", "y")
START = 1_000.0
TOPIC = "t"


class World(RuleBasedStateMachine):
    """Two stores and a subscriber. Messages, beacons and connections are lost; clocks of publishers are off; sites are
    restarted, and their beacons tell only of what was stored since.

    In the end all that is in a store has been delivered, each once; what came live is in the order of its source.
    """

    @initialize(seed=st.integers(0, 99))
    def begin(self, seed: int) -> None:
        self.now = START
        self.delivered_ids = DeliveredIds()
        self.detector = GapDetector(SITES, self.delivered_ids.__contains__, random.Random(seed), self.now)
        self.stored: dict[str, list[tuple[float, bytes]]] = {site: [] for site in SITES}
        self.restarted = dict.fromkeys(SITES, (-1_000.0, 0))  # when, and how many messages the store had then
        self.order: list[tuple[bytes, bool]] = []  # id, late
        self.held: list[bytes] = []
        self.in_flight: list[bytes] = []
        self.connected = True
        self.numbers: defaultdict[int, int] = defaultdict(int)

    @rule(
        source=st.integers(0, 2),
        stores=st.sampled_from([("x",), ("y",), ("x", "y")]),
        fate=st.sampled_from(["live", "live", "slow", "lost"]),
    )
    def publish(self, source: int, stores: tuple[str, ...], fate: str) -> None:
        """Source 2 has a clock an hour slow."""
        self.numbers[source] += 1
        us = int((self.now - (3600 if source == 2 else 0)) * 1e6) + 5_000_000_000 + self.numbers[source]
        message_id = b"p%d~aaaaa:home:%d:%d" % (source, us, self.numbers[source])
        for site in stores:
            self.stored[site].append((self.now, message_id))
        if fate == "lost" or not self.connected:
            return
        self.in_flight.append(message_id)
        if fate == "live":
            self.arrive()

    @rule()
    def arrive(self) -> None:
        for message_id in self.in_flight:
            if not self.delivered_ids.seen(message_id):
                self.note(message_id)
                if self.detector.holding:
                    self.held.append(message_id)
                else:
                    self.order.append((message_id, False))
        self.in_flight.clear()

    @rule(seconds=st.sampled_from([0.3, 1.0, 2.0, 10.0, 40.0]))
    def wait(self, seconds: float) -> None:
        """What is slow is under way for at most a second or two."""
        if seconds > 1:
            self.arrive()
        self.now += seconds

    @rule(site=st.sampled_from(SITES))
    def restart(self, site: str) -> None:
        self.now += 0.1
        self.restarted[site] = self.now, len(self.stored[site])

    @precondition(lambda self: self.connected)
    @rule()
    def lose_connection(self) -> None:
        self.connected = False
        self.in_flight.clear()

    @precondition(lambda self: not self.connected)
    @rule()
    def reconnect(self) -> None:
        self.connected = True
        self.detector.reconnected(self.now)

    @precondition(lambda self: self.connected)
    @rule(site=st.sampled_from(SITES))
    def beacon(self, site: str) -> None:
        now = int(self.now) + 5_000
        seconds: defaultdict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        late = []
        restarted, known = self.restarted[site]
        for at, message_id in self.stored[site][known:]:
            second = parse_stamp(message_id).published_us // 1_000_000
            count, digest = seconds[second]
            seconds[second] = count + 1, add_digests(digest, id_hash(message_id, b""))
            if second <= now - 30 and at > self.now - 30:
                late.append(message_id)
        told = [seconds[second] for second in range(now - 29, now + 1)]
        counts, digests = [one for one, _ in told], [one for _, one in told]
        tip = Tip(site, False, now - 29, counts, digests, late[-256:], min(30.0, self.now - restarted))
        self.detector.tip(TOPIC, tip, self.now)

    @precondition(lambda self: self.connected)
    @rule(fails=st.booleans())
    def step(self, fails: bool) -> None:
        for read in self.detector.due(self.now):
            if fails:
                self.detector.failed(read.site, self.now)
            else:
                self.read(read.site, read.within)
        if not self.detector.holding:
            self.order += [(message_id, False) for message_id in self.held]
            self.held.clear()

    def read(self, site: str, within: float) -> None:
        started = self.now
        missing = [m for at, m in self.stored[site] if at >= self.now - within and m not in self.delivered_ids]
        self.delivered_ids.filling(True)
        for message_id in sorted(missing, key=lambda one: parse_stamp(one).published_us):
            self.delivered_ids.seen(message_id)
            self.note(message_id)
            self.order.append((message_id, True))
        self.delivered_ids.filling(False)
        self.detector.read(site, started)

    def note(self, message_id: bytes) -> None:
        stamp = parse_stamp(message_id)
        self.delivered_ids.note_time(stamp.source, stamp.published_us)
        second = stamp.published_us // 1_000_000
        self.detector.delivered(TOPIC, second, lambda: id_hash(message_id, b""), self.now)

    @invariant()
    def each_once_and_live_ones_in_order(self) -> None:
        if not hasattr(self, "order"):
            return
        ids = [message_id for message_id, _ in self.order] + self.held
        assert len(set(ids)) == len(ids), "no duplicate"
        live = [parse_stamp(message_id) for message_id, late in self.order if not late]
        live += [parse_stamp(message_id) for message_id in self.held]
        for source in {stamp.source for stamp in live}:
            numbers = [stamp.number for stamp in live if stamp.source == source]
            assert numbers == sorted(numbers), "in order"

    def teardown(self) -> None:
        if not hasattr(self, "order"):
            return
        if not self.connected:
            self.reconnect()
        self.arrive()
        for _ in range(12):  # quiet for a while: checks come even without beacons
            self.now += 10.0
            self.step(fails=False)
        everything = {message_id for site in SITES for _, message_id in self.stored[site]}
        delivered = {message_id for message_id, _ in self.order}
        assert everything <= delivered, f"missing: {sorted(everything - delivered)}"
        self.each_once_and_live_ones_in_order()


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_subscription_without_gaps_reads_no_store_while_beacons_come() -> None:
    now, delivered = START, DeliveredIds()
    detector = GapDetector(["x"], delivered.__contains__, random.Random(1), now)
    reads = 0
    seconds: dict[int, tuple[int, int]] = {}
    for n in range(600):  # ten minutes, a message a second
        now += 1.0
        us = int(now * 1e6)
        message_id = b"p~aaaaa:home:%d:%d" % (us, n + 1)
        delivered.seen(message_id)
        detector.delivered(TOPIC, us // 1_000_000, lambda one=message_id: id_hash(one, b""), now)
        seconds[us // 1_000_000] = 1, id_hash(message_id, b"")
        if n % 2:
            told = [seconds.get(second, (0, 0)) for second in range(int(now) - 29, int(now) + 1)]
            tip = Tip("x", False, int(now) - 29, [one for one, _ in told], [one for _, one in told])
            detector.tip(TOPIC, tip, now)
        reads += len(detector.due(now))
    assert reads == 0


def test_a_store_that_counts_anew_is_read_since_it_was_good_also_when_the_first_attempt_fails() -> None:
    detector = GapDetector(["x"], lambda _: True, random.Random(1), 0.0)
    for now in range(2, 42, 2):
        detector.tip(TOPIC, Tip("x", False, now - 29, [0] * 30, [0] * 30), now)
        assert detector.due(now) == []
    # Between 40 and 46 the site was restarted; what its store got meanwhile is not in its beacons.
    detector.tip(TOPIC, Tip("x", False, 19, [0] * 30, [0] * 30, [], 2.0), 48.0)
    assert [read.within for read in detector.due(52.0)] == [52.0 - (40.0 - 2 * SETTLE) + MARGIN]
    detector.tip(TOPIC, Tip("x", False, 23, [0] * 30, [0] * 30, [], 6.0), 52.0)
    detector.failed("x", 57.0)
    assert [read.within for read in detector.due(60.0)] == [60.0 - (40.0 - 2 * SETTLE) + MARGIN]
    detector.read("x", 60.0)
    detector.tip(TOPIC, Tip("x", False, 31, [0] * 30, [0] * 30, [], 14.0), 60.0)
    assert detector.due(64.0) == []


def test_after_a_reconnection_every_store_is_read_since_it_was_good_and_again_when_interest_has_settled() -> None:
    detector = GapDetector(["x", "y"], lambda _: True, random.Random(1), 0.0)
    detector.reconnected(20.0)
    assert detector.holding
    assert [(read.site, read.within) for read in detector.due(20.0)] == [("x", 20.0), ("y", 20.0)]
    detector.read("x", 20.0)
    assert detector.holding, "the other one is being read"
    detector.failed("y", 25.0)
    assert not detector.holding
    assert detector.due(20.0 + SETTLE - 0.1) == []
    due = {read.site: read.within for read in detector.due(30.0)}
    assert due == {"x": 10.0 + MARGIN, "y": 30.0}, "only since what is known to be complete"
