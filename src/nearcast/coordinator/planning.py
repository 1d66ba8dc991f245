"""One pass of the loop: a model from the last reports, what is wrong with it, a plan, and its execution."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from nearcast.coordinator.detectors import Anomaly, detect
from nearcast.coordinator.executor.client_move import ClientMove
from nearcast.coordinator.executor.replica_move import ReplicaMove
from nearcast.coordinator.executor.topic_move import TopicMove
from nearcast.coordinator.goals import ClientProposal, Proposal, ReplicaProposal
from nearcast.coordinator.homes import reloc_homes
from nearcast.coordinator.plan import Plan, make_plan, subject_of
from nearcast.coordinator.snapshot import ClientColumns, snapshot
from nearcast.nats.tasks import gather_or_cancel

if TYPE_CHECKING:
    from nearcast.coordinator.coordinator import Coordinator
    from nearcast.coordinator.model import Model

__all__ = ["Planning"]

_log = logging.getLogger(__name__)
_LEFT_KEPT = 10_000


class Planning:
    """Model, detectors, goals and plan, for a coordinator that leads."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._clients = ClientColumns()
        self._known_sites: frozenset[str] = frozenset()
        self._moved_at: dict[str, float] = {}
        self._last: dict[str, Any] = {}
        self._homes_of = -1  # the version of the clients that RELOC's plan was made for
        self._homes_at = float("-inf")

    def model(self) -> Model:
        """The state as the last reports tell it."""
        one = self._coordinator
        registry, monitor = one.registry, one.monitor
        columns = self._clients.of(
            registry.clients_version, registry.clients, tuple(sorted(registry.topics)), tuple(sorted(registry.sites))
        )
        now = asyncio.get_running_loop().time()
        return snapshot(
            registry.sites,
            registry.topics,
            monitor.reports,
            monitor.columns,
            monitor.lost(now),
            monitor.lost_stores(now),
            one.settings,
            columns,
        )

    def look(self) -> tuple[Model, list[Anomaly]]:
        """The model and what is wrong with it."""
        model = self.model()
        return model, detect(model, self._coordinator.settings, self._known_sites)

    def plan(self, model: Model) -> Plan:
        """What to do about it."""
        one = self._coordinator
        now = asyncio.get_running_loop().time()
        return make_plan(model, one.settings, self._moved_at, now, one.goals, one.executor.copies.keys())

    async def step(self) -> None:
        """One pass: nothing is planned while nothing is wrong, and nothing is moved unless that is wanted."""
        executor = self._coordinator.executor
        failure, executor.failure = executor.failure, None
        if failure is not None:
            raise failure
        began = time.perf_counter()
        model, anomalies = self.look()
        joined = (
            frozenset(np.array(model.sites.names)[model.sites.alive].tolist()) if model.sites.names else frozenset()
        )
        self._known_sites = joined
        now, rests = asyncio.get_running_loop().time(), self._coordinator.settings.cool_down
        self._moved_at = {subject: at for subject, at in self._moved_at.items() if now - at < rests}
        moves = 0
        if anomalies:
            plan = self.plan(model)
            moves = len(plan.accepted)
            for anomaly in anomalies:
                _log.info("%s: %s", anomaly.kind, anomaly.sentence)
            if moves and self._coordinator.settings.automatic:
                await self.carry_out(plan, copies=False)
        self._last = {
            "seconds": round(time.perf_counter() - began, 3),
            "anomalies": [anomaly.sentence for anomaly in anomalies],
            "moves": moves,
        }
        await self._plan_homes(model, now)

    async def _plan_homes(self, model: Model, now: float) -> None:
        """RELOC's plan for clients that register, made anew when clients changed, not more often than they may move."""
        one = self._coordinator
        version = one.registry.clients_version
        if one.settings.homes != "reloc" or version == self._homes_of or now - self._homes_at < one.settings.cool_down:
            return
        self._homes_of, self._homes_at = version, now
        made = await asyncio.to_thread(reloc_homes, model, one.settings.seed)
        # Who has left may come back, and then registers: its last planned home is kept for a while.
        left = one.homes.plan if len(one.homes.plan) <= 2 * len(made) + _LEFT_KEPT else {}
        one.homes.plan = left | made

    def show(self) -> dict[str, Any]:
        """The plan for the present state, not carried out."""
        model, anomalies = self.look()
        return _shown(self.plan(model), anomalies)

    async def apply(self) -> dict[str, Any]:
        """The plan for the present state, carried out."""
        model, anomalies = self.look()
        plan = self.plan(model)
        shown = _shown(plan, anomalies)
        outcomes = await self.carry_out(plan)
        for move, outcome in zip(shown["moves"], outcomes, strict=True):
            move["outcome"] = outcome
        return shown

    async def carry_out(self, plan: Plan, *, copies: bool = True) -> list[str]:
        """Make the moves; how each ended is returned, in order. copies: wait also for new replicas to have the past.

        The loop does not: copying may take long, and a site may be lost meanwhile. Other moves it waits for: the next
        pass must see what they did.
        """
        return await gather_or_cancel(
            *(self._make(plan.model, one.proposal, one.goal, copies) for one in plan.accepted)
        )

    async def _make(self, model: Model, proposal: Proposal, goal: str, copies: bool) -> str:
        one = self._coordinator
        self._moved_at[subject_of(model, proposal)] = asyncio.get_running_loop().time()
        if isinstance(proposal, ReplicaProposal):
            topic = model.topics.names[proposal.topic]
            before = model.topics.records[proposal.topic].spec.replicas
            if topic in one.executor.copies:
                return "its replicas are on the move already"
            copying = one.executor.copy(
                ReplicaMove(one.next_move_id(), topic, before, proposal.replicas, goal, proposal.reason)
            )
            if not copies:
                return "its past is being copied"
            await asyncio.wait((copying,), timeout=one.settings.copy_limit)
            if not copying.done():
                return "its past is still being copied"
            return "this coordinator stopped leading" if copying.cancelled() else copying.result().reason or "done"
        if isinstance(proposal, ClientProposal):
            name = model.clients.names[proposal.client]
            client = one.registry.clients.get(name)
            if client is None:
                return "the client has left"
            target = model.sites.names[proposal.home]
            move = ClientMove(one.next_move_id(), name, client.home, target, goal, proposal.reason)
            (finish,) = await one.executor.run([move])
            return finish.reason or "done"
        name = model.topics.names[proposal.topic]
        record = one.registry.topics.get(name)
        if record is None or record.members != model.topics.records[proposal.topic].members:
            return "the topic has changed meanwhile"
        lost = tuple(
            found for found in record.members
            if not model.sites.alive[model.sites.names.index(found.site)]
        )  # fmt: skip
        topic_move = TopicMove(
            one.next_move_id(), name, record.epoch, record.members, proposal.members, goal, proposal.reason, lost
        )
        (finish,) = await one.executor.run([topic_move])
        return finish.reason or "done"

    def topic_figures(self, topic: str) -> dict[str, Any]:
        """What the model has about a topic."""
        topics = self.model().topics
        if topic not in topics.names:
            return {}
        row = topics.names.index(topic)
        return {
            "messages_per_s": round(float(topics.published[row]), 2),
            "worst_latency_ms": round(float(topics.latency[row]), 1),
            "deviation_ms": round(float(topics.deviation[row]), 1),
        }

    def last_pass(self) -> dict[str, Any]:
        """What the last pass found and did."""
        return self._last


def _shown(plan: Plan, anomalies: list[Anomaly]) -> dict[str, Any]:
    return {
        "found": [{"kind": anomaly.kind, "sentence": anomaly.sentence} for anomaly in anomalies],
        "moves": plan.sentences(),
        "refused": plan.refusals(),
        "before": plan.before,
        "after": plan.after,
    }
