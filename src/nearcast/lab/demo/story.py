"""The story: acts that are announced, played, and narrated by what the coordinator does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.errors import NearcastError
from nearcast.lab.demo.account import CityAccount, account_for
from nearcast.lab.demo.city import BOUND_MS, CLOUD, ZONES, ways
from nearcast.lab.demo.crowd import Crowd
from nearcast.lab.demo.notes import Notes
from nearcast.lab.scenarios.ledger import read_ledger
from nearcast.lab.scenarios.observed_moves import MoveObserver, ObservedMove
from nearcast.nats.coordinator_rpc import CoordinatorError
from nearcast.nats.tasks import TaskSet, cancel_and_wait

if TYPE_CHECKING:
    from nearcast.lab.demo.city import Act
    from nearcast.lab.demo.deployment import CityDeployment, Say

__all__ = ["Story", "told_story"]

_KILLED = "harbour"
_STATUS_SECONDS = 5.0
_SETTLE_LIMIT = 90.0
_CLUSTER_LIMIT = 400.0
_HISTORY_SECONDS, _HISTORY_ATTEMPTS = 600.0, 60
_LEAST_ENRICHED, _LEAST_SECONDS = 30, 30  # a story that was over before the data cluster was up waits for its results


class Story:
    """Plays acts. moves: what the coordinator did since the story began. problem: what could not be shown, and why."""

    def __init__(self, deployment: CityDeployment, say: Say) -> None:
        self._deployment, self._city, self._say = deployment, deployment.city, say
        self.notes = Notes()
        scenario = self._city.scenario()
        self._crowds = {node: Crowd(node, deployment, self.notes) for node in scenario.nodes}
        self._participants = scenario.participants
        self._tasks, self._lives = TaskSet(), list[asyncio.Task[None]]()
        self._start = float("inf")
        self._channels: asyncio.Task[None] | None = None
        self.moves: list[ObservedMove] = []
        self.problem = ""

    async def gather_people(self) -> None:
        """Connect everybody who is there when the story begins."""
        nodes = self._deployment.nodes
        self._lives = [asyncio.create_task(nodes.call(c.node, c.run), name=c.node) for c in self._crowds.values()]
        first = len(self._participants) - self._city.visitors
        await self._join(range(first))
        self._say(f"{first} clients are connected: drones, people, and a sensor in each zone.")

    async def _join(self, numbers: range) -> None:
        by_node: dict[str, list[int]] = {}
        for number in numbers:
            by_node.setdefault(self._participants[number].node, []).append(number)
        await asyncio.gather(*(self._crowds[node].do(self._crowds[node].join(some)) for node, some in by_node.items()))

    async def play(self, acts: tuple[Act, ...]) -> CityAccount:
        """All acts, then the account."""
        self._start = time.time() + 0.5
        await self._everybody("begin", self._start)
        self._tasks.spawn(self._narrate())
        status = self._tasks.spawn(self._status())
        if self._deployment.data_cluster is not None:
            self._channels = self._tasks.spawn(self._open_channels())
        playing = {1: self._rest, 2: self._match, 3: self._flights, 4: self._failure, 5: self._latecomer}
        for act in acts:
            begun, seconds = time.time(), act.share * self._city.seconds
            await self._announce(f"Act {act.number}: {act.title}: {act.about}.")
            await playing[act.number](seconds)
            await asyncio.sleep(begun + seconds - time.time())
        await self._wait_for_channels()
        await cancel_and_wait(status)
        return await self._settle()

    async def end(self) -> None:
        """Disconnect everybody."""
        await self._tasks.cancel()
        for crowd in self._crowds.values():
            crowd.stop()
        if self._lives:
            await asyncio.wait(self._lives, timeout=30)
        await cancel_and_wait(*self._lives)

    async def _everybody(self, what: str, *arguments: object) -> list[Any]:
        return await asyncio.gather(*(c.do(getattr(c, what)(*arguments)) for c in self._crowds.values()))

    async def _announce(self, text: str) -> None:
        """In the terminal and on the map."""
        self._say("")
        self._say(text)
        if self._deployment.announcements is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._deployment.announcements.show, text)

    async def _rest(self, seconds: float) -> None:
        """Nothing happens but daily life."""

    async def _match(self, seconds: float) -> None:
        count = len(self._participants)
        joining = self._tasks.spawn(self._join(range(count - self._city.visitors, count)))
        await asyncio.wait([joining], timeout=seconds)  # on a busy machine they are still coming when the act ends
        if joining.done():
            joining.result()
            self._say(f"  {self._city.visitors} visitors are at the stadium; their phones chose the nearest site.")

    async def _flights(self, seconds: float) -> None:
        """Each swarm changes zone twice."""
        rng = np.random.default_rng((self._city.seed, 9))
        zones = {swarm: self._city.first_zone(swarm) for swarm in range(self._city.swarms)}
        begun, flights = time.time(), 2 * self._city.swarms
        for flight in range(flights):
            swarm = flight % self._city.swarms
            zones[swarm] = str(rng.choice([zone for zone in ZONES if zone != zones[swarm]]))
            await asyncio.sleep(begun + seconds * flight / (flights + 1) - time.time())
            self._deployment.nodes.move(f"swarm{swarm}", ways(zones[swarm]))
            self._crowds[f"swarm{swarm}"].zone = zones[swarm]
            self._say(f"  Swarm {swarm} reaches the {zones[swarm]}.")

    async def _failure(self, seconds: float) -> None:
        killed = await self._deployment.kill_site(_KILLED)
        self._say(f"  {killed} processes of the {_KILLED} are killed (-9).")
        await asyncio.sleep(seconds / 2)
        await self._deployment.start_site(_KILLED)
        self._say(f"  The {_KILLED} is back.")

    async def _latecomer(self, seconds: float) -> None:
        topics, crowd = [f"alerts.{zone}" for zone in ZONES], self._crowds["people-campus"]
        await asyncio.sleep(seconds / 2)
        due = {(row[0], row[1]) for row in self.notes.alerts.published}
        self.notes.not_in_history, answer = len(due), ""
        for _ in range(_HISTORY_ATTEMPTS):  # what was acknowledged just now may not be processed yet
            begun = time.monotonic()
            try:
                found = await crowd.do(crowd.ask_history("latecomer", topics, _HISTORY_SECONDS))
            except NearcastError as error:  # stores on a busy machine; asked again
                answer = f"  No history: {error}"
            else:
                took, self.notes.not_in_history = time.monotonic() - begun, len(due - found)
                missing = self.notes.not_in_history
                answer = f"  {len(found)} alerts of {len(topics)} zones in {took * 1000:.0f} ms; {missing} are missing."
                if not missing:
                    break
            await asyncio.sleep(1.0)
        self._say(answer)

    async def _open_channels(self) -> None:
        cluster = self._deployment.data_cluster
        assert cluster is not None
        begun = time.monotonic()
        await asyncio.wait([cluster])
        cluster.result()
        self._say(f"  The data cluster is up after {time.monotonic() - begun:.0f} s; people subscribe to its channels.")
        await self._everybody("subscribe_channels")
        count = len(self.notes.subscriptions)
        self._say(f"  {count} subscriptions by type, by area and near me are active.")

    async def _wait_for_channels(self) -> None:
        """The data cluster may start slower than the story goes; its part is then played after it."""
        if self._channels is None:
            return
        begun = time.monotonic()
        while not self._channels.done() and time.monotonic() - begun < _CLUSTER_LIMIT:
            self._say(f"  Waiting for the data cluster ({time.time() - self._start:.0f} s).")
            await asyncio.wait([self._channels], timeout=_STATUS_SECONDS)
        if not self._channels.done():
            self.problem = f"the data cluster was not up within {_CLUSTER_LIMIT:g} s"
        elif (error := self._channels.exception()) is not None:
            self.problem = f"the data cluster failed: {error}"
        else:
            for _ in range(_LEAST_SECONDS):
                if len(self.notes.enriched_ms) < _LEAST_ENRICHED:
                    await asyncio.sleep(1.0)

    async def _settle(self) -> CityAccount:
        """Stop publishing, and wait until nothing is owed."""
        await self._everybody("silence")
        seconds, deadline = time.time() - self._start, time.monotonic() + _SETTLE_LIMIT
        self._say("")
        self._say("The story is over. Waiting until nothing is owed any more …")
        while time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            if not sum(await self._everybody("unacknowledged")):
                break
        await self._everybody("note_subscriptions")
        while True:
            account = await asyncio.to_thread(account_for, self._city, self.notes, self._start, seconds)
            if account.lost == 0 or time.monotonic() > deadline:
                return account
            self._say(f"  {account.lost} notifications are still owed.")
            await asyncio.sleep(_STATUS_SECONDS)

    async def _narrate(self) -> None:
        """Say what the coordinator moves, and why."""

        async def follow() -> None:
            async with self._deployment.operator() as connection:
                observer, told = MoveObserver(connection), set[ObservedMove]()
                while True:
                    with contextlib.suppress(CoordinatorError):  # a new one may just take over
                        await observer.read()
                    new = [move for move in observer.moves if move.at >= self._start and move not in told]
                    told.update(new)
                    self.moves += new
                    self._tell(new)
                    await asyncio.sleep(1.0)

        await self._deployment.nodes.call(CLOUD, follow)

    def _tell(self, moves: list[ObservedMove]) -> None:
        clients = [move for move in moves if move.kind == "client"]
        for move in moves:
            if move.kind == "topic" and not move.subject.startswith("plain"):
                self._say(f"    topic {move.subject}: {move.source} → {move.target}. {move.reason}")
        if clients:
            first = clients[0]
            more = f" and {len(clients) - 1} more" if len(clients) > 1 else ""
            self._say(f"    client {first.subject}{more}: {first.source} → {first.target}. {first.reason}")

    async def _status(self) -> None:
        while True:
            await asyncio.sleep(_STATUS_SECONDS)
            self._say(await asyncio.to_thread(self._status_line))

    def _status_line(self) -> str:
        seconds, texts = time.time() - self._start, []
        for name, prefix, results in (("drones", "swarm", self.notes.drones), ("plain", "plain", self.notes.plain)):
            scenario = replace(self._city.scenario(prefix), seconds=seconds)
            ledger = read_ledger(scenario, self._start, [results])
            recent = ledger.latency_ms[(ledger.published > seconds - 10) & np.isfinite(ledger.latency_ms)]
            if len(recent):
                above = float((recent > BOUND_MS).mean())
                texts.append(f"{name} p90 {np.percentile(recent, 90):.0f} ms, {above:.0%} above {BOUND_MS:g} ms")
        return f"  {seconds:3.0f} s  {self.notes.notifications:,} notifications; last 10 s: {'; '.join(texts)}"


@contextlib.asynccontextmanager
async def told_story(deployment: CityDeployment, say: Say) -> AsyncIterator[Story]:
    """A story whose people are connected inside the block."""
    story = Story(deployment, say)
    try:
        await story.gather_people()
        yield story
    finally:
        await story.end()
