"""The control loop: monitor → model → detect → plan → execute, one pass per period."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.coordinator.detectors import Anomaly, detect, unprocessed
from nearcast.coordinator.goals import ClientProposal, ReplicaProposal
from nearcast.coordinator.hysteresis import Hysteresis
from nearcast.coordinator.model.build_model import build_model
from nearcast.coordinator.model.client_columns import client_columns
from nearcast.coordinator.moves import ClientMove, ReplicaMove, TopicMove
from nearcast.coordinator.plan import Plan, changed_topics, latency_figures, make_plan, subject_of
from nearcast.coordinator.proposals import Proposals
from nearcast.coordinator.term import DeposedError
from nearcast.errors import NearcastError
from nearcast.nats.kv import BucketError, ConflictError
from nearcast.nats.tasks import gather_or_cancel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.executor.executor import Executor
    from nearcast.coordinator.goals import Goal, Proposal, TopicProposal
    from nearcast.coordinator.homes import HomePolicy
    from nearcast.coordinator.model import Model
    from nearcast.coordinator.monitor import Monitor
    from nearcast.coordinator.registry import Registry
    from nearcast.coordinator.term import Term

__all__ = ["ControlLoop"]

_log = logging.getLogger(__name__)


class ControlLoop:
    """Builds a model from the registry and the last reports, plans for its anomalies, and has the plan executed."""

    def __init__(
        self,
        registry: Registry,
        monitor: Monitor,
        homes: HomePolicy,
        executor: Executor,
        term: Term,
        settings: CoordinatorSettings,
        goals: tuple[Goal, ...],
    ) -> None:
        self._registry, self._monitor, self._homes, self._executor = registry, monitor, homes, executor
        self._term, self._settings, self._goals = term, settings, goals
        self._clients = client_columns({}, (), ())
        self._clients_of: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None  # what these columns were made of
        self._moved_at: dict[str, float] = {}
        self._settled: dict[str, float] = {}  # topics: when their last move, or that of a client of theirs, ended
        self._hysteresis = Hysteresis()
        self._wake = asyncio.Event()
        self.known_sites: frozenset[str] = frozenset()  # alive at the last pass
        self.last_pass: dict[str, Any] = {}
        self.anomalies: list[Anomaly] = []  # of the last pass
        self.passes, self.pass_seconds = 0, 0.0
        self._proposals = Proposals(settings.plan_valid)

    async def run(self) -> None:
        """Run passes until the term is over; a pass that fails is logged."""
        while True:
            now = asyncio.get_running_loop().time()
            for client in self._monitor.take_departed(now, self._settings.client_lost_after):
                await self._registry.remove_client(client)
            try:
                await self.run_pass()
            except (DeposedError, BucketError, ConflictError):
                raise
            except Exception:
                _log.exception("a pass of the control loop failed")
            self._wake.clear()
            await asyncio.sleep(max(self._settings.react, self.last_pass.get("seconds", 0.0)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(self._settings.period - self._settings.react, 0.0)):
                    await self._wake.wait()

    def wake(self) -> None:
        """Something changed that cannot wait for the period: a client moved, or a topic is late."""
        self._wake.set()

    async def run_pass(self) -> None:
        """One pass. It plans only if there are anomalies, and executes the plan only if `automatic` is set."""
        failure, self._executor.failure = self._executor.failure, None
        if failure is not None:
            raise failure
        began = time.perf_counter()
        model, anomalies = self._observe()
        names, now = np.array(model.sites.names, dtype=object), asyncio.get_running_loop().time()
        self.known_sites = frozenset(names[model.sites.alive].tolist())
        cool_down = self._settings.cool_down
        self._moved_at = {subject: at for subject, at in self._moved_at.items() if now - at < cool_down}
        late = np.flatnonzero(model.topics.latency > model.topics.bound).tolist()
        self._hysteresis.observe({model.topics.names[row] for row in late}, now)
        moves = 0
        if anomalies and model.sites.names:
            plan = self._make_plan(model)
            moves = len(plan.accepted)
            known = {(anomaly.kind, anomaly.about) for anomaly in self.anomalies}
            for anomaly in anomalies:
                if (anomaly.kind, anomaly.about) not in known:  # one may last, as of a site that was removed
                    _log.info("%s: %s", anomaly.kind, anomaly.sentence)
            if moves and self._settings.automatic:
                await self._execute(plan, wait_for_copies=False)
        seconds = time.perf_counter() - began
        self.anomalies, self.passes, self.pass_seconds = anomalies, self.passes + 1, self.pass_seconds + seconds
        self.last_pass = {
            "seconds": round(seconds, 3),
            "anomalies": [anomaly.sentence for anomaly in anomalies],
            "moves": moves,
        }
        await self._homes.update_plan(model, self._registry.clients_version, now)

    def show_plan(self) -> dict[str, Any]:
        """The plan for the present state, not executed; `execute_proposal` executes exactly this one."""
        model, anomalies = self._observe()
        shown = self._proposals.add(self._make_plan(model), anomalies)
        return {"id": shown.id, "expires": shown.expires, **shown.plan.to_dict(anomalies)}

    async def execute_proposal(self, identity: str, moves: Sequence[int] | None) -> dict[str, Any]:
        """Execute a plan that was shown, or some of its moves; each has its outcome."""
        proposal, plan = self._proposals.take(identity, moves)
        shown = proposal.plan.to_dict(proposal.anomalies)
        outcomes = iter(await self._execute(plan, wait_for_copies=True))
        for number, move in enumerate(shown["moves"]):
            move["outcome"] = next(outcomes) if moves is None or number in moves else "not approved"
        return {"id": identity, **shown}

    async def apply_plan(self) -> dict[str, Any]:
        """Make a plan for the present state and execute it; each move has its outcome."""
        model, anomalies = self._observe()
        plan = self._make_plan(model)
        shown = plan.to_dict(anomalies)
        outcomes = await self._execute(plan, wait_for_copies=True)
        for move, outcome in zip(shown["moves"], outcomes, strict=True):
            move["outcome"] = outcome
        return shown

    def topic_figures(self, only: str | None = None) -> dict[str, dict[str, Any]]:
        """The figures of all topics, or of one, of the present model."""
        model = self._model()
        published = model.topics.published
        return {
            name: {"messages_per_s": round(float(published[row]), 2), **latency_figures(model, row, self._settings)}
            for row, name in enumerate(model.topics.names)
            if only in (None, name)
        }

    def _model(self) -> Model:
        registry = self._registry
        topics, sites = tuple(sorted(registry.topics)), tuple(sorted(registry.sites))
        if self._clients_of != (made_of := (registry.clients_version, topics, sites)):
            self._clients, self._clients_of = client_columns(registry.clients, topics, sites), made_of
        now = asyncio.get_running_loop().time()
        held, just_late = self._hysteresis.held(now), self._hysteresis.just_late(now)
        return build_model(
            registry.sites, registry.topics, self._clients, self._monitor, now, self._settings, self._settled, held,
            just_late,
        )  # fmt: skip

    def _observe(self) -> tuple[Model, list[Anomaly]]:
        model = self._model()
        return model, [*detect(model, self._settings, self.known_sites), *unprocessed(self._monitor.lags())]

    def _make_plan(self, model: Model) -> Plan:
        if not model.sites.names:
            raise NearcastError("no site has registered yet, so there is nothing to plan; try again in a moment")
        now = asyncio.get_running_loop().time()
        return make_plan(model, self._settings, self._moved_at, now, self._goals, self._executor.copies.keys())

    async def _execute(self, plan: Plan, *, wait_for_copies: bool) -> list[str]:
        """Execute the moves; returns the outcome of each, in order.

        The loop does not wait for replicas to be copied: that may take long, and a site may be lost meanwhile. It waits
        for the other moves, because the next pass must see their effect.
        """
        outcomes = await gather_or_cancel(
            *(self._move(plan.model, move.proposal, move.goal, wait_for_copies) for move in plan.accepted)
        )
        now = asyncio.get_running_loop().time()
        for row in changed_topics(plan.model, plan.accepted):
            self._settled[plan.model.topics.names[row]] = now
        return outcomes

    async def _move(self, model: Model, proposal: Proposal, goal: str, wait_for_copies: bool) -> str:
        now, subject = asyncio.get_running_loop().time(), subject_of(model, proposal)
        self._moved_at[subject] = now
        if isinstance(proposal, ReplicaProposal):
            return await self._move_replicas(model, proposal, goal, wait_for_copies)
        if isinstance(proposal, ClientProposal):
            move: TopicMove | ClientMove | str = self._client_move(model, proposal, goal)
        else:
            move = self._topic_move(model, proposal, goal)
        if isinstance(move, str):
            return move
        (finish,) = await self._executor.run([move])
        if not finish.reason:
            self._hysteresis.moved(subject, now)
        return finish.reason or "done"

    def _client_move(self, model: Model, proposal: ClientProposal, goal: str) -> ClientMove | str:
        """The move, or why it is out of date."""
        name = model.clients.names[proposal.client]
        client = self._registry.clients.get(name)
        if client is None:
            return "the client has left"
        target = model.sites.names[proposal.home]
        return ClientMove(self._term.next_move_id(), name, client.home, target, goal, proposal.reason)

    def _topic_move(self, model: Model, proposal: TopicProposal, goal: str) -> TopicMove | str:
        """The move, or why it is out of date."""
        name = model.topics.names[proposal.topic]
        record = self._registry.topics.get(name)
        if record is None or record.members != model.topics.records[proposal.topic].members:
            return "the topic has changed meanwhile"
        sites = model.sites
        lost = tuple(member for member in record.members if not sites.alive[sites.names.index(member.site)])
        return TopicMove(
            self._term.next_move_id(), name, record.epoch, record.members, proposal.members, goal, proposal.reason, lost
        )

    async def _move_replicas(self, model: Model, proposal: ReplicaProposal, goal: str, wait: bool) -> str:
        topic = model.topics.names[proposal.topic]
        before = model.topics.records[proposal.topic].spec.replicas
        if topic in self._executor.copies:
            return "its replicas are being moved already"
        move = ReplicaMove(self._term.next_move_id(), topic, before, proposal.replicas, goal, proposal.reason)
        copying = self._executor.copy(move)
        if wait:
            await asyncio.wait((copying,), timeout=self._settings.copy_limit)
        if not copying.done():
            return "its stored messages are being copied"
        return "this coordinator stopped leading" if copying.cancelled() else copying.result().reason or "done"
