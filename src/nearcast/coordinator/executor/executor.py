"""Executes moves: does what the machines say, many moves at once, one at a time for each topic and client."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from nearcast.coordinator.executor import client_move as cm
from nearcast.coordinator.executor import replica_move as rm
from nearcast.coordinator.executor import topic_move as tm
from nearcast.coordinator.executor.move_history import MoveHistory, place_of
from nearcast.coordinator.executor.steps import Erase, Finish, Journal
from nearcast.coordinator.moves import ReplicaMove, TopicMove
from nearcast.coordinator.term import DeposedError
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.kv import ConflictError
from nearcast.nats.replica_stream import holds_topic
from nearcast.nats.rpc import NoAnswerError, StaleTermError, call
from nearcast.nats.tasks import KeyedLocks, cancel_and_wait, gather_or_cancel, retry
from nearcast.protocol.control import Rehome, StartTopic, StopTopic, TopicRecord

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.moves import ClientMove, Move
    from nearcast.coordinator.registry import Registry
    from nearcast.coordinator.site_leases import SiteLeases
    from nearcast.coordinator.term import Term
    from nearcast.domain.worker_id import WorkerId
    from nearcast.nats.connection import Connection

__all__ = ["Executor"]

S = TypeVar("S")
_log = logging.getLogger(__name__)
_COPY_CHECK_SECONDS = 0.5


class Executor:
    """Executes the moves of one leader. Before each step it checks that the term is not over."""

    def __init__(
        self,
        registry: Registry,
        connection: Connection,
        settings: CoordinatorSettings,
        term: Term,
        leases: SiteLeases,
    ) -> None:
        self._registry, self._connection, self._settings, self._leader_term = registry, connection, settings, term
        self._leases = leases
        for move in registry.moves.values():  # before the first report is answered
            if isinstance(move, TopicMove):
                leases.withhold_again(_lost_sites(move))
        self._stopped = False
        self._slots = asyncio.Semaphore(settings.moves_at_once)
        self._locks = KeyedLocks()
        self.copies: dict[str, asyncio.Task[Finish]] = {}  # by topic: replicas that are being moved
        self.failure: BaseException | None = None  # of a replica move, which nobody awaits
        self.history = MoveHistory()

    async def run(self, moves: Iterable[TopicMove | ClientMove]) -> list[Finish]:
        """Execute new moves; returns how each ended."""
        return await gather_or_cancel(*(self._execute(move, resumed=False) for move in moves))

    async def resume(self) -> None:
        """Finish or roll back the moves that an earlier leader began."""
        moves = []
        for move in list(self._registry.moves.values()):
            if isinstance(move, ReplicaMove):
                self.copy(move, resumed=True)
            else:
                moves.append(self._execute(move, resumed=True))
        await gather_or_cancel(*moves)

    def copy(self, move: ReplicaMove, *, resumed: bool = False) -> asyncio.Task[Finish]:
        """Begin to move a topic's replicas. Copying may take long, so it has a task of its own."""
        task = self.copies[move.topic] = asyncio.create_task(
            self._move_replicas(move, resumed), name=f"replicas of {move.topic}"
        )

        began = asyncio.get_running_loop().time()

        def done(task: asyncio.Task[Finish]) -> None:
            del self.copies[move.topic]
            if task.cancelled():
                return
            if task.exception() is None:
                self.history.add(move, task.result(), asyncio.get_running_loop().time() - began)
            self.failure = self.failure or task.exception()
            log = _log.warning if task.exception() else _log.info
            log("replicas of %s -> %s: %s", move.topic, move.after, task.exception() or task.result())

        task.add_done_callback(done)
        return task

    async def stop(self) -> None:
        """Take no further step. The next leader, perhaps this coordinator again, continues from the journal."""
        self._stopped = True
        await cancel_and_wait(*self.copies.values())

    def _term(self) -> int:
        if self._stopped:
            raise DeposedError("this coordinator stopped leading")
        return self._leader_term.number()

    async def _execute(self, move: TopicMove | ClientMove, *, resumed: bool) -> Finish:
        name = f"topic {move.topic}" if isinstance(move, TopicMove) else f"client {move.client}"
        async with self._locks[name], self._slots:
            began = asyncio.get_running_loop().time()
            if isinstance(move, TopicMove):
                finish = await self._move_withheld_topic(move, resumed)
            else:
                finish = await self._move_client(move, resumed)
            self.history.add(move, finish, asyncio.get_running_loop().time() - began)
            _log.info("%s: %s -> %s: %s", name, place_of(move.before), place_of(move.after), finish)
            return finish

    async def _write_journal(self, move: Move, step: Journal | Erase) -> None:
        self._term()
        if isinstance(step, Journal):
            await self._registry.journal(move)
        else:
            await self._registry.erase_move(move)

    async def _send_command(self, subject: str, command: Any, limit: float, client: str = "") -> str:
        """Send a command to a site or client. Returns why it was not done; empty when it was."""
        try:
            # The subscription may be new: the broker learns of it a moment later.
            await retry(
                lambda: call(self._connection, subject, command, NoneType, timeout=limit, reply=_answer_of(client)),
                within=limit / 2,
                on=NoAnswerError,
            )
        except StaleTermError as error:
            self._term()  # whether this one still leads is for the lease to say, not for whoever answers
            return str(error)
        except NearcastError as error:
            return str(error)
        return ""

    async def _move_withheld_topic(self, move: TopicMove, resumed: bool) -> Finish:
        """A lost site that is heard again while its topic is given away gets no lease before the move has ended."""
        lost = _lost_sites(move)
        if not resumed and not self._leases.withhold(lost, asyncio.get_running_loop().time()):
            names = ", ".join(sorted(lost))
            return Finish("abandoned", f"{names} is back, or too few other sites hear this coordinator")
        finish = await self._move_topic(move, resumed)
        self._leases.release(lost)  # not when it was interrupted: the next leader continues with it
        return finish

    async def _move_topic(self, move: TopicMove, resumed: bool) -> Finish:
        machine = tm.TopicMoveMachine(move)
        first: tm.Event = tm.Resume(await self._registry.reread_topic(move.topic)) if resumed else tm.Begin()
        events = deque([first])
        while True:
            instructions = machine.handle(events.popleft())
            if instructions and isinstance(instructions[0], Finish):
                return instructions[0]
            events.extend(await gather_or_cancel(*(self._do(move, instruction) for instruction in instructions)))

    async def _do(self, move: TopicMove, instruction: tm.Instruction) -> tm.Event:
        term = self._term()
        match instruction:
            case Journal() | Erase():
                await self._write_journal(move, instruction)
                return tm.Journalled() if isinstance(instruction, Journal) else tm.Erased()
            case tm.Start(member, source, epoch):
                record = self._registry.topics.get(move.topic)
                if record is None:
                    return tm.Failed(member, "the topic was removed")
                spec = with_members(record, epoch, move.after, move.id).spec
                start = StartTopic(term, epoch, spec, member.worker, source)
                subject = subjects.site_command(member.site, "start")
                error = await self._send_command(subject, start, self._settings.start_limit)
                return tm.Failed(member, error) if error else tm.Started(member)
            case tm.Commit(expected, epoch, members):
                return await self._commit(move, expected, epoch, members)
            case tm.Stop(member, towards, epoch):
                stop = StopTopic(term, epoch, move.topic, member.worker, towards)
                subject = subjects.site_command(member.site, "stop")
                error = await self._send_command(subject, stop, self._settings.leave_limit)
                if error:
                    _log.warning("topic %s: %s did not confirm that it stopped: %s", move.topic, member, error)
                return tm.Stopped(member)
        raise AssertionError(instruction)

    async def _commit(self, move: TopicMove, expected: int, epoch: int, members: tuple[WorkerId, ...]) -> tm.Event:
        record = self._registry.topics.get(move.topic)
        if record is None or record.epoch != expected:
            return tm.Conflict(await self._registry.reread_topic(move.topic))
        try:
            await self._registry.put_topic(with_members(record, epoch, members, move.id))
        except ConflictError:
            return tm.Conflict(await self._registry.reread_topic(move.topic))
        return tm.Committed()

    async def _move_client(self, move: ClientMove, resumed: bool) -> Finish:
        async def do(step: cm.ClientStep) -> str | None:
            match step:
                case Journal() | Erase():
                    await self._write_journal(move, step)
                case cm.TellClient():
                    return await self._rehome(move)
                case cm.RecordHome():
                    self._term()
                    client = self._registry.clients.get(move.client)
                    if client is not None:
                        await self._registry.put_client(msgspec.structs.replace(client, home=move.after))
            return None

        return await _follow(cm.resume_client_move() if resumed else cm.begin_client_move(), do)

    async def _rehome(self, move: ClientMove) -> str:
        site = self._registry.sites.get(move.after)
        if site is None:
            return f"site {move.after} is not registered"
        command = Rehome(self._term(), site.name, site.url)
        return await self._send_command(
            subjects.client_command(move.client), command, self._settings.rehome_limit, client=move.client
        )

    async def _move_replicas(self, move: ReplicaMove, resumed: bool) -> Finish:
        async def do(step: rm.ReplicaStep) -> bool | str | None:
            match step:
                case Journal() | Erase():
                    await self._write_journal(move, step)
                case rm.AssignReplicas(replicas):
                    return await self._assign_replicas(move.topic, replicas)
                case rm.WaitForCopy(fresh):
                    return await self._wait_for_copy(move, fresh, resumed)
            return None

        if not resumed:
            return await _follow(rm.begin_replica_move(move), do)
        record = await self._registry.reread_topic(move.topic)
        return await _follow(rm.resume_replica_move(move, record.spec.replicas if record is not None else None), do)

    async def _assign_replicas(self, topic: str, replicas: tuple[str, ...]) -> bool:
        async with self._locks[f"topic {topic}"]:  # its members may be changing
            self._term()
            record = self._registry.topics.get(topic)
            if record is not None and set(record.spec.replicas) != set(replicas):
                await self._registry.put_replicas(record, replicas)
            return record is not None

    async def _wait_for_copy(self, move: ReplicaMove, fresh: tuple[str, ...], resumed: bool) -> str:
        """Wait until the new stores have copied; give up after `copy_limit`, if that is safe.

        It is safe only if an old store answered all the time: then it has all messages that the new ones have.
        Otherwise this waits until an old store is back; until then there is nothing to copy from.
        """
        clock, limit = asyncio.get_running_loop().time, self._settings.copy_limit
        began, waiting, safe = clock(), set(fresh), not resumed
        while True:
            self._term()
            waiting -= {site for site in waiting if await holds_topic(self._connection, site, move.topic)}
            if not waiting:
                return ""
            safe = safe and any([await holds_topic(self._connection, site, move.topic) for site in move.before])
            if safe and clock() - began > limit:
                return f"the store of {', '.join(sorted(waiting))} did not copy the topic within {limit:g} s"
            # The rate of these requests does not grow with the number of copies.
            await asyncio.sleep(_COPY_CHECK_SECONDS * max(1.0, len(self.copies) / self._settings.moves_at_once))


async def _follow(steps: Generator[S, Any, Finish], do: Callable[[S], Awaitable[Any]]) -> Finish:
    """Do one step after the other; each answer decides on the next."""
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as ended:
            return cast("Finish", ended.value)
        answer = await do(step)


def _answer_of(client: str) -> str:
    return subjects.client_answer(client, secrets.token_hex(8)) if client else ""


def _lost_sites(move: TopicMove) -> set[str]:
    return {member.site for member in move.lost}


def with_members(record: TopicRecord, epoch: int, members: tuple[WorkerId, ...], move: str) -> TopicRecord:
    """The record with other members; their sites manage the topic."""
    sites = tuple(dict.fromkeys(member.site for member in members))
    return TopicRecord(msgspec.structs.replace(record.spec, managed_by=sites), epoch, members, move)
