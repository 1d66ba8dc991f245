"""The clients of one node: drones with their twins, people and the zone's sensor, on the loop of their node."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nearcast.auth.roles import Grants
from nearcast.client import Client, Subscription, connect
from nearcast.errors import NearcastError
from nearcast.lab.demo.city import CLOUD, DRONE_RATE, REPORT_SECONDS, ZONES, Report
from nearcast.lab.demo.data_cluster import RADIUS_M
from nearcast.lab.demo.notes import ChannelSubscription, FedReport
from nearcast.lab.demo.wording import sentence
from nearcast.lab.scenarios.clients import note_received, now_us
from nearcast.lab.workloads.emergency_scene import TYPES
from nearcast.nats.tasks import TaskSet, cancel_and_wait, retry

if TYPE_CHECKING:
    from nearcast.lab.demo.deployment import CityDeployment
    from nearcast.lab.demo.notes import Notes
    from nearcast.lab.scenarios.clients import ClientResults
    from nearcast.lab.scenarios.scenario import Participant
    from nearcast.message import Message

__all__ = ["Crowd"]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_CLOSE_LIMIT = 15.0
_CONNECT_LIMIT = 180.0  # a busy machine is no reason to give up
_WALK_SECONDS = 5.0
_STAY_US = 60_000_000
_DRILL, _DRILL_SECONDS = "drill", 2.0
_GRANTS = Grants((">",), (">",), ("*",), ("*",))


class Crowd:
    """Run it at its node; everything else may be called from another loop through `do`. zone: where its node is."""

    def __init__(self, node: str, deployment: CityDeployment, notes: Notes) -> None:
        self.node, self._deployment, self._notes, self._city = node, deployment, notes, deployment.city
        self.zone = node.removeprefix("people-")
        if self.zone not in ZONES:
            self.zone = self._city.first_zone(int(node.removeprefix("swarm")))
        self._start, self._begun = 0.0, asyncio.Event()
        self._clients: dict[str, Client] = {}
        self._tasks, self._connected = TaskSet(), list[asyncio.Task[None]]()
        self._spans: list[tuple[ClientResults, int, str, int]] = []
        self._persons: list[int] = []
        self._publishing = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    async def run(self) -> None:
        """Exist until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._stop.wait()
        finally:
            await self._tasks.cancel()
            self._stop.set()
            if self._connected:  # all at once; with brokers that are gone, closing takes its time
                await asyncio.wait(self._connected, timeout=_CLOSE_LIMIT)
            await cancel_and_wait(*self._connected)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something on the loop of this crowd; call it from another loop, or from the same one."""
        while self._loop is None:  # noqa: ASYNC110 - its thread is just starting
            await asyncio.sleep(0.01)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def stop(self) -> None:
        """Disconnect everybody, soon; from any thread."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)

    async def join(self, numbers: list[int]) -> None:
        """Connect and subscribe participants of the city, by their numbers."""
        everybody = self._city.scenario().participants
        await asyncio.gather(*(self._join(number, everybody[number]) for number in numbers))

    async def _join(self, number: int, who: Participant) -> None:
        client = await self._connect(who.name, coordinated=True, mobile=who.mobile)
        if who.name.startswith("swarm"):
            await self._listen(client, number, who.topic, self._notes.drones)
            # The twin: the same drone with a home that is nearest at first, and a topic that stays where hash put it.
            swarm, plain = int(who.node.removeprefix("swarm")), who.topic.replace("swarm", "plain")
            home = self._city.first_zone(swarm)
            twin = await self._connect(who.name.replace("swarm", "plain"), coordinated=False, home=home)
            await self._listen(twin, number, plain, self._notes.plain)
            phase = float(np.random.default_rng((self._city.seed, number)).random())
            self._tasks.spawn(self._fly(client, number, who.topic, phase, self._notes.drones))
            self._tasks.spawn(self._fly(twin, number, plain, phase, self._notes.plain))
        elif who.name.startswith("person"):
            await self._listen(client, number, who.topic, self._notes.alerts)
            self._persons.append(int(who.name.removeprefix("person")))
        else:
            zone = who.topic.removeprefix("alerts.")
            reports = [report for report in self._city.reports if report.zone == zone]
            self._tasks.spawn(self._report(client, number, who.topic, reports))

    async def _connect(self, name: str, *, coordinated: bool, mobile: bool = False, home: str = "") -> Client:
        credentials = self._deployment.auth.add_user("device", name, grants=_GRANTS)
        url, attempts = self._deployment.url, itertools.count()
        spools = self._deployment.folder / "spools"
        spools.mkdir(exist_ok=True)

        async def attempt() -> Client:
            if coordinated:
                client = connect(
                    coordinator=[url(CLOUD), *(url(zone) for zone in ZONES)], credentials=credentials, mobile=mobile,
                    timeout=_CONNECT_LIMIT, spool=spools / f"{name}-{next(attempts)}", report_seconds=REPORT_SECONDS,
                )  # fmt: skip
            else:
                client = connect([url(home), url(CLOUD)], credentials=credentials, timeout=_CONNECT_LIMIT)
            ready = asyncio.get_running_loop().create_future()
            self._connected.append(asyncio.create_task(self._hold(client, ready), name=name))
            await ready
            return client

        # A broker closes a connection that does not prove who it is in time, as on a busy machine.
        client = self._clients[name] = await retry(attempt, within=_CONNECT_LIMIT, on=(NearcastError,), pause=1.0)
        if coordinated:
            self._tasks.spawn(self._roam(client))
        return client

    async def _roam(self, client: Client) -> None:
        """Tell the map where somebody is; who changes zone flies there, half of the way each time."""
        while True:
            lat, lon = self._city.place(client.name, self.zone, time.time() - (self._start or time.time()))
            old = client.position or (lat, lon)
            client.position = ((old[0] + lat) / 2, (old[1] + lon) / 2)
            await asyncio.sleep(REPORT_SECONDS)

    async def _hold(self, client: Client, ready: asyncio.Future[None]) -> None:
        """Keep a client connected until the end."""
        assert self._stop is not None
        try:
            async with client:
                ready.set_result(None)
                await self._stop.wait()
        except NearcastError as error:
            if ready.done():
                _log.warning("client %s: %s", client.name, error)
            else:
                ready.set_exception(error)

    async def _listen(self, client: Client, number: int, topic: str, results: ClientResults) -> None:
        note = partial(_note_alert if topic.startswith("alerts") else note_received, number, results)
        await _subscribed(lambda: client.subscribe(topic, callback=note))
        self._spans.append((results, number, topic, now_us()))

    async def begin(self, start: float) -> None:
        """From this Unix time on everybody publishes."""
        self._start = start
        self._begun.set()

    async def _story_time(self) -> float:
        await self._begun.wait()
        await asyncio.sleep(self._start - time.time())
        return self._start

    async def _fly(self, client: Client, number: int, topic: str, phase: float, results: ClientResults) -> None:
        start = await self._story_time()
        first = max(0, int((time.time() - start) * DRONE_RATE))
        for count in itertools.count(first):
            due = start + (count + phase) / DRONE_RATE
            await asyncio.sleep(due - time.time())
            if not self._publishing:
                return
            await self._publish(client, topic, b"%d %d" % (number, count), (number, count, int(due * 1e6)), results)

    async def _report(self, client: Client, number: int, topic: str, reports: list[Report]) -> None:
        start = await self._story_time()
        for count, report in enumerate(reports):
            if start + report.at < time.time() - 1:
                continue  # before this sensor came
            await asyncio.sleep(start + report.at - time.time())
            if not self._publishing:
                return
            now = time.time()
            place = {"lat": report.lat, "lon": report.lon}
            alert = {"n": [number, count], "id": report.id, "kind": report.kind, "seen": now - report.age_s, **place}
            due = int((start + report.at) * 1e6)
            await self._publish(client, topic, alert, (number, count, due), self._notes.alerts)
            if self._notes.subscriptions:
                self._tasks.spawn(self._feed(client, report, now))

    async def _feed(self, client: Client, report: Report, now: float) -> None:
        place = {"lat": report.lat, "lon": report.lon}
        record = {"id": report.id, "kind": report.kind, "zone": report.zone, "seen": now - report.age_s, "sent": now}
        with contextlib.suppress(NearcastError):  # not acknowledged, not promised
            await client.feed("reports", {**record, **place}, timeout=30.0)
            fed = FedReport(report.id, report.kind, report.zone, report.lat, report.lon, now)
            self._notes.fed.append(fed)

    async def _publish(
        self, client: Client, topic: str, data: Any, number: tuple[int, int, int], results: ClientResults
    ) -> None:
        """Publish, and note it once a store has it: only that is promised."""
        at = now_us()

        def acknowledged(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                return
            if (error := done.exception()) is None:
                results.published.append((*number, at))
            else:
                results.failed.append(f"{topic}: {error}")

        try:
            receipt = await client.publish_nowait(topic, data)
        except NearcastError as error:
            results.failed.append(f"{topic}: {error}")
            return
        receipt.add_done_callback(acknowledged)

    async def silence(self) -> None:
        """Stop publishing."""
        self._publishing = False

    async def unacknowledged(self) -> int:
        """Publications of coordinated clients whose stores have not answered yet."""
        return sum(client.spooled for client in self._clients.values())

    async def note_subscriptions(self) -> None:
        """Note since when everybody is subscribed; they stay until all is judged."""
        for results, number, topic, since in self._spans:
            results.subscribed.append((number, topic, since, now_us() + _STAY_US))
        self._notes.reconnects += sum(client.reconnects for client in self._clients.values())

    async def subscribe_channels(self) -> None:
        """Everybody says where they are, and wants a type of emergency, an area, and what is near."""
        await asyncio.gather(*(self._subscribe_person(person) for person in self._persons))

    async def _subscribe_person(self, person: int) -> None:
        client, rng = self._clients[f"person{person}"], np.random.default_rng((self._city.seed, 3, person))
        await self._walk(client, person)
        kind = TYPES[int(rng.integers(len(TYPES)))].replace("_", " ")
        wanted: dict[str, dict[str, Any]] = {
            "by_type": {"kind": kind},
            "by_area": {"zone": self._city.homes[person]},
            "near_me": {"user": client.name, "radius": RADIUS_M},
        }
        made = []
        for channel, params in wanted.items():
            made.append(ChannelSubscription(person, channel, params))
            callback = partial(self._notified, made[-1])
            await _subscribed(partial(client.subscribe, channel=channel, params=params, callback=callback))
        await self._drill(client, person, made[-1])
        for subscription in made:
            subscription.since = time.time()
        self._notes.subscriptions += made
        self._tasks.spawn(self._walk_on(client, person))

    async def _drill(self, client: Client, person: int, near: ChannelSubscription) -> None:
        """Report a drill where the person is until it is notified of: from then on its place is known there."""
        for attempt in itertools.count():
            lat, lon = self._place(person)
            now = time.time()
            record = {"id": f"drill{person}-{attempt}", "kind": _DRILL, "zone": _DRILL, "lat": lat, "lon": lon}
            with contextlib.suppress(NearcastError):
                await client.feed("reports", {**record, "seen": now, "sent": now}, timeout=30.0)
            await asyncio.sleep(_DRILL_SECONDS * (1 + attempt))
            if any(key.startswith(_DRILL) for key in near.received):
                return

    def _place(self, person: int) -> tuple[float, float]:
        return self._city.place(f"person{person}", self.zone, time.time() - self._start)

    async def _walk(self, client: Client, person: int) -> None:
        """Say where somebody is. Noted before: it may count from then on."""
        lat, lon = self._place(person)
        self._notes.walked.setdefault(person, []).append((time.time(), lat, lon))
        with contextlib.suppress(NearcastError):
            await client.feed("locations", {"user": client.name, "lat": lat, "lon": lon}, timeout=30.0)

    async def _walk_on(self, client: Client, person: int) -> None:
        while self._publishing:
            await asyncio.sleep(_WALK_SECONDS)
            await self._walk(client, person)

    def _notified(self, subscription: ChannelSubscription, message: Message) -> None:
        now = time.time()
        for row in message.data["rows"]:
            subscription.received[row["id"]] += 1
            if row["kind"] != _DRILL:
                self._notes.enriched_ms.append((now - row["sent"]) * 1000)
                self._notes.sentences.append(sentence(row, self._place(subscription.person), now))

    async def ask_history(self, name: str, topics: list[str], seconds: float) -> set[tuple[int, int]]:
        """A question for the past: sensor and count of the alerts that a newcomer gets."""
        client = self._clients.get(name) or await self._connect(name, coordinated=True)
        found = set()
        for topic in topics:
            async for message in client.history(topic, since=time.time() - seconds):
                publisher, count = message.data["n"]
                found.add((publisher, count))
        return found


async def _subscribed(subscribe: Callable[[], Subscription]) -> None:
    await retry(subscribe, within=_CONNECT_LIMIT, on=(NearcastError,), pause=1.0)  # an agent may be busy


def _note_alert(number: int, results: ClientResults, message: Message) -> None:
    now = now_us()
    publisher, count = message.data["n"]
    results.received.append((number, publisher, count, now))
