"""Carries moves out: does what the machines say, many moves at once, one at a time for each topic and client."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from nearcast.coordinator.executor import client_move as cm
from nearcast.coordinator.executor import replica_move as rm
from nearcast.coordinator.executor import topic_move as tm
from nearcast.coordinator.executor.steps import Erase, Erased, Journal, Journalled
from nearcast.domain.worker_id import WorkerId
from nearcast.errors import NearcastError
from nearcast.nats import subjects
from nearcast.nats.kv import ConflictError
from nearcast.nats.replica_stream import keeps
from nearcast.nats.rpc import NoAnswerError, StaleTermError, call
from nearcast.nats.tasks import cancel_and_wait, gather_or_cancel, retry
from nearcast.protocol.control import Answer, Rehome, StartTopic, StopTopic, TopicRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.registry import Move, Registry
    from nearcast.nats.connection import Connection

__all__ = ["DeposedError", "Executor"]

_log = logging.getLogger(__name__)
_LOOK_EVERY = 0.5


class DeposedError(NearcastError):
    """This coordinator no longer leads; its successor goes on with what it began."""


class Executor:
    """Makes moves. `term` gives the term to act in, and raises DeposedError when there is none."""

    def __init__(
        self, registry: Registry, connection: Connection, settings: CoordinatorSettings, term: Callable[[], int]
    ) -> None:
        self._registry, self._connection, self._settings, self._current_term = registry, connection, settings, term
        self._stopped = False
        self._slots = asyncio.Semaphore(settings.moves_at_once)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.copies: dict[str, asyncio.Task[rm.Finish]] = {}  # by topic: replicas on the move
        self.failure: BaseException | None = None  # of a copy, which nobody waits for
        self.finished: deque[tuple[tm.TopicMove | cm.ClientMove, tm.Finish | cm.Finish, float]] = deque(maxlen=1000)

    async def run(self, moves: Iterable[tm.TopicMove | cm.ClientMove]) -> list[tm.Finish | cm.Finish]:
        """Make new moves; how each ended is returned."""
        return await gather_or_cancel(*(self._one(move, resumed=False) for move in moves))

    async def resume(self) -> None:
        """Finish or roll back what an earlier leader began."""
        moves = []
        for move in list(self._registry.moves.values()):
            if isinstance(move, rm.ReplicaMove):
                self.copy(move, resumed=True)
            else:
                moves.append(self._one(move, resumed=True))
        await gather_or_cancel(*moves)

    def copy(self, move: rm.ReplicaMove, *, resumed: bool = False) -> asyncio.Task[rm.Finish]:
        """Begin to move a topic's replicas. Copying its past may take long: nobody needs to wait for it."""
        task = self.copies[move.topic] = asyncio.create_task(
            self._move_replicas(move, resumed), name=f"replicas of {move.topic}"
        )

        def over(task: asyncio.Task[rm.Finish]) -> None:
            del self.copies[move.topic]
            if task.cancelled():
                return
            self.failure = self.failure or task.exception()
            log = _log.warning if task.exception() else _log.info
            log("replicas of %s -> %s: %s", move.topic, move.after, task.exception() or task.result())

        task.add_done_callback(over)
        return task

    async def stop(self) -> None:
        """Make no further step: whoever leads next, perhaps the same coordinator, goes on from the journal."""
        self._stopped = True
        await cancel_and_wait(*self.copies.values())

    def _term(self) -> int:
        if self._stopped:
            raise DeposedError("this coordinator stopped leading meanwhile")
        return self._current_term()

    async def _one(self, move: tm.TopicMove | cm.ClientMove, *, resumed: bool) -> tm.Finish | cm.Finish:
        name = f"topic {move.topic}" if isinstance(move, tm.TopicMove) else f"client {move.client}"
        async with self._locks[name], self._slots:
            began = asyncio.get_running_loop().time()
            if isinstance(move, tm.TopicMove):
                finish: tm.Finish | cm.Finish = await self._move_topic(move, resumed)
            else:
                finish = await self._move_client(move, resumed)
            self.finished.append((move, finish, asyncio.get_running_loop().time() - began))
            _log.info("%s: %s -> %s: %s", name, move.before, move.after, finish)
            return finish

    async def _written(self, move: Move, step: Journal | Erase) -> Journalled | Erased:
        self._term()
        if isinstance(step, Journal):
            await self._registry.journal(move)
            return Journalled()
        await self._registry.erase_move(move)
        return Erased()

    async def _move_topic(self, move: tm.TopicMove, resumed: bool) -> tm.Finish:
        machine = tm.TopicMoveMachine(move)
        first: tm.Event = tm.Begin()
        if resumed:
            first = tm.Resume(await self._registry.reread_topic(move.topic))
        events: deque[tm.Event] = deque([first])
        while True:
            instructions = machine.handle(events.popleft())
            if instructions and isinstance(instructions[0], tm.Finish):
                return instructions[0]
            events.extend(await gather_or_cancel(*(self._do(move, instruction) for instruction in instructions)))

    async def _do(self, move: tm.TopicMove, instruction: tm.Instruction) -> tm.Event:
        term = self._term()
        match instruction:
            case Journal() | Erase():
                return await self._written(move, instruction)
            case tm.Start(name, source, epoch):
                site, worker = name
                record = self._registry.topics.get(move.topic)
                if record is None:
                    return tm.Failed(name, "the topic was removed")
                spec = with_members(record, epoch, move.after, move.id).spec
                command = StartTopic(term, epoch, spec, worker, source)
                error = await self._tell_site(subjects.site_command(site, "start"), command, self._settings.start_limit)
                return tm.Failed(name, error) if error else tm.Started(name)
            case tm.Commit(expected, epoch, members):
                return await self._commit(move, expected, epoch, members)
            case tm.Leave(name, towards, epoch):
                site, worker = name
                stop = StopTopic(term, epoch, move.topic, worker, towards)
                error = await self._tell_site(subjects.site_command(site, "stop"), stop, self._settings.leave_limit)
                if error:
                    _log.warning("%s was not told to leave topic %s: %s", name, move.topic, error)
                return tm.Left(name)
        raise AssertionError(instruction)

    async def _commit(self, move: tm.TopicMove, expected: int, epoch: int, members: tuple[WorkerId, ...]) -> tm.Event:
        record = self._registry.topics.get(move.topic)
        if record is None or record.epoch != expected:
            return tm.Conflict(await self._registry.reread_topic(move.topic))
        try:
            await self._registry.put_topic(with_members(record, epoch, members, move.id))
        except ConflictError:
            return tm.Conflict(await self._registry.reread_topic(move.topic))
        return tm.Committed()

    async def _move_replicas(self, move: rm.ReplicaMove, resumed: bool) -> rm.Finish:
        machine = rm.ReplicaMoveMachine(move)
        event: rm.Event = rm.Begin()
        if resumed:
            record = await self._registry.reread_topic(move.topic)
            event = rm.Resume(None if record is None else record.spec.replicas)
        while True:
            instruction = machine.handle(event)
            match instruction:
                case rm.Finish():
                    return instruction
                case Journal() | Erase():
                    event = await self._written(move, instruction)
                case rm.Name(replicas):
                    event = await self._name(move.topic, replicas)
                case rm.Copy(fresh):
                    event = await self._copied(move, fresh, resumed)

    async def _name(self, topic: str, replicas: tuple[str, ...]) -> rm.Event:
        async with self._locks[f"topic {topic}"]:  # its members may be changing
            self._term()
            record = self._registry.topics.get(topic)
            if record is None:
                return rm.Gone()
            if set(record.spec.replicas) != set(replicas):
                await self._registry.put_replicas(record, replicas)
            return rm.Named()

    async def _copied(self, move: rm.ReplicaMove, fresh: tuple[str, ...], resumed: bool) -> rm.Event:
        """Going back is safe only if an old store answered all the while, for then it has all that the new ones have.

        Otherwise this waits until an old one is back: until then there is nothing to copy, and nobody to go back to.
        """
        clock, limit = asyncio.get_running_loop().time, self._settings.copy_limit
        began, waiting, safe = clock(), set(fresh), not resumed
        while True:
            self._term()
            waiting -= {site for site in waiting if await self._has_the_past(site, move.topic)}
            if not waiting:
                return rm.Copied()
            safe = safe and any([await self._has_the_past(site, move.topic) for site in move.before])
            if safe and clock() - began > limit:
                stores = ", ".join(sorted(waiting))
                return rm.NotCopied(f"the store of {stores} did not have its past within {limit:g} s")
            # All copies together ask as often as a few do.
            await asyncio.sleep(_LOOK_EVERY * max(1.0, len(self.copies) / self._settings.moves_at_once))

    async def _has_the_past(self, site: str, topic: str) -> bool:
        try:
            manager = self._connection.jsm(prefix=subjects.store_api(site), timeout=5)
            return keeps((await manager.stream_info(subjects.stream_name(topic))).config, topic)
        except (NatsError, TimeoutError):
            return False

    async def _move_client(self, move: cm.ClientMove, resumed: bool) -> cm.Finish:
        machine = cm.ClientMoveMachine(move)
        event: cm.Event = cm.Resume() if resumed else cm.Begin()
        while True:
            (instruction,) = machine.handle(event)
            match instruction:
                case cm.Finish():
                    return instruction
                case Journal() | Erase():
                    event = await self._written(move, instruction)
                case cm.Tell():
                    error = await self._rehome(move)
                    event = cm.Stayed(error) if error else cm.Moved()
                case cm.Note():
                    self._term()
                    client = self._registry.clients.get(move.client)
                    if client is not None:
                        await self._registry.put_client(msgspec.structs.replace(client, home=move.after))
                    event = cm.Noted()

    async def _rehome(self, move: cm.ClientMove) -> str:
        site = self._registry.sites.get(move.after)
        if site is None:
            return f"site {move.after} is not registered"
        command = Rehome(self._term(), site.name, site.url)
        subject, limit = subjects.client_command(move.client), self._settings.rehome_limit
        try:
            # Brokers learn of each other's subscriptions a moment late: nobody listens yet.
            await retry(
                lambda: call(self._connection, subject, command, NoneType, timeout=limit),
                within=limit / 2,
                on=NoAnswerError,
            )
        except StaleTermError as error:
            if error.term > self._term():
                raise DeposedError(str(error)) from error
            return str(error)
        except NearcastError as error:
            return str(error)
        return ""

    async def _tell_site(self, subject: str, command: Any, limit: float) -> str:
        """Send a command to a site; why it was not done is returned."""
        try:
            # Brokers learn of each other's subscriptions a moment late: nobody listens yet.
            await retry(
                lambda: call(self._connection, subject, command, NoneType, timeout=limit),
                within=limit / 2,
                on=NoAnswerError,
            )
        except StaleTermError as error:
            if error.term > self._term():
                raise DeposedError(str(error)) from error
            return str(error)
        except NearcastError as error:
            return str(error)
        return ""

    async def _tell(self, subject: str, command: Any, limit: float) -> str:
        """Send a command; why it was not done is returned."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit
        while True:
            try:
                reply = await self._connection.request(subject, msgspec.json.encode(command), timeout=limit)
                break
            except NoRespondersError:  # brokers learn of each other's subscriptions a moment late
                if clock() > deadline - limit / 2:
                    return "nobody is there"
                await asyncio.sleep(0.1)
            except (NatsError, TimeoutError) as error:
                return str(error) or f"no answer within {limit:g} s"
        answer = msgspec.json.decode(reply.data, type=Answer)
        if answer.term > self._term():
            raise DeposedError(answer.error)
        return answer.error


def with_members(record: TopicRecord, epoch: int, members: tuple[WorkerId, ...], move: str) -> TopicRecord:
    """A record with other members; the topic is managed by their sites."""
    sites = tuple(dict.fromkeys(name.site for name in members))
    return TopicRecord(msgspec.structs.replace(record.spec, managed_by=sites), epoch, members, move)
