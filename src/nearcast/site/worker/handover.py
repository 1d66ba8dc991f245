"""How a topic comes to a worker and leaves it again, without losing or repeating a publication.

    absent ─► copying ─► joining ─► member ─► stepping aside ─► forwarding ─► finishing ─► absent

Joining: subscribe to the copies that the present member sends from now on, copy its spool, then enter the queue group.
Leaving: a broker far away may still send here for a moment after the queue group was left. So the topic is subscribed
to without the queue group first; what only this plain subscription got is forwarded to a member that stays. Most of it
arrived there, too, and ids tell. Where there is a third member it may have gone there instead: then it is held for a
moment, and processed only if no copy of it has come by then. A publication without an id is held as well, and dropped
if another one with the same payload arrived.

Decisions only: `handover_executor` feeds events and does what the instructions say, what does I/O one after the other.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from nearcast.domain.worker_id import WorkerId
from nearcast.nats.stamp import ANONYMOUS
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged, SpoolPage, SpoolPageRequest
from nearcast.site.worker import handover_events as ho
from nearcast.site.worker.received_publications import ReceivedPublications

__all__ = ["HandoverMachine", "Phase"]


class Phase(Enum):
    """Where a topic is on its way through the worker."""

    ABSENT = 0
    COPYING = 1
    JOINING = 2
    MEMBER = 3
    STEPPING_ASIDE = 4
    FORWARDING = 5
    FINISHING = 6


_JOINING = (Phase.COPYING, Phase.JOINING)
_PROCESSING = (Phase.COPYING, Phase.JOINING, Phase.MEMBER, Phase.STEPPING_ASIDE)


class HandoverMachine:
    """One stay of a topic, or a family of topics, at a worker. Events in, instructions out; no I/O, no clock.

    The data path asks `take_publication` and `take_copy` directly: an event per message would cost too much.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.phase = Phase.ABSENT
        self.epoch = 0
        self.sends_copies = False
        self._shared = False  # with members besides this one and the one it came from
        self._hold = 0.0
        self._source: WorkerId | None = None
        self._towards: WorkerId | None = None  # where publications go that still come after it left
        self._settle = 0.0
        self._copies = False  # whether copies are subscribed to
        self._received = ReceivedPublications()
        self._buffered: list[ho.HandoverMessage] = []  # copies that came before the spool had been copied
        self._taken: Counter[tuple[str, bytes]] = Counter()  # from the queue group, while stepping aside
        self._passed: list[ho.HandoverMessage] = []  # seen by the plain subscription, while stepping aside
        self.held = 0
        self._failure = ""
        self._pending: list[ho.Command] = []  # answered when it has joined, or left
        self._returning: list[HostTopic] = []  # answered when it has left and joined again

    @property
    def is_hosted(self) -> bool:
        """Whether the topic is here to stay, or about to be."""
        return self.phase in (*_JOINING, Phase.MEMBER)

    def take_publication(self, topic: str, message_id: bytes, payload: bytes, now: float) -> bool:
        """The queue group gave a publication: whether to process it. Else it came before."""
        if self.phase is Phase.STEPPING_ASIDE:
            self._taken[topic, message_id or payload] += 1
        received = self._received[topic]
        if message_id:
            return received.is_new(message_id)
        received.note_payload(payload, now)
        return True

    def note_redelivery(self, topic: str, message_id: bytes) -> None:
        """A store gave a publication that is processed here now: should it come by the queue group yet, it is known."""
        self._received[topic].is_new(message_id)

    def forget_topic(self, topic: str) -> None:
        """A concrete topic fell silent and was removed."""
        self._received.pop(topic, None)

    def take_copy(self, topic: str, message_id: bytes, payload: bytes, now: float) -> bool:
        """Another member processed a publication: whether to append it to the spool now."""
        received = self._received[topic]
        if message_id.startswith(ANONYMOUS):
            received.note_payload(payload, now)
        if self.phase is Phase.COPYING:
            self._buffered.append(ho.HandoverMessage(topic, message_id, payload))
            return False
        return received.is_new(message_id)

    def handle(self, event: ho.Event, now: float) -> list[ho.Instruction]:
        """What to do now that this happened."""
        match event:
            case HostTopic():
                return self._host(event)
            case LeaveTopic():
                return self._leave(event)
            case MembersChanged():
                return self._change_members(event)
            case SpoolPageRequest():
                return self._share_spool(event)
            case ho.Subscribed(role):
                return self._subscribed(role)
            case ho.Drained(role):
                return self._drained(role, now)
            case ho.PageReceived(page):
                return self._copy(page)
            case ho.CopyFailed(reason):
                self._failure = reason
                return self._finish()
            case ho.PlainReceived(publication):
                if self.phase is Phase.STEPPING_ASIDE:
                    self._passed.append(publication)
                    return []
                return self._forward(publication, now)
            case ho.HandedOver(publication):
                return self._handed_over(publication, now)
            case ho.HoldExpired(publication):
                self.held -= 1
                return self._release(publication, now)
            case ho.SettleOver():
                return [ho.Drain("plain")]
            case ho.HoldOver():
                return self._finish()
            case ho.Idle():
                return self._end()

    # Joining

    def _host(self, command: HostTopic) -> list[ho.Instruction]:
        if self.phase is Phase.ABSENT:
            return self._begin(command)
        if not self.is_hosted:  # it comes back before it has gone
            self._returning.append(command)
            return []
        self.epoch = max(self.epoch, command.epoch)
        if self.phase is Phase.MEMBER:
            return [ho.Done(command)]
        self._pending.append(command)
        return []

    def _begin(self, command: HostTopic) -> list[ho.Instruction]:
        self.epoch, self._hold, self._source = command.epoch, command.hold, command.source
        self._pending = [command]
        self._shared = len(command.spec.managed_by) > 1
        # Publications come twice when they are sent again for a quorum, or may be handed over by another member.
        if command.spec.replicas or command.epoch > 1 or self._shared:
            self._deduplicate()
        self.sends_copies = self._copies = self._shared or self._source is not None
        self.phase = Phase.COPYING if self._source else Phase.JOINING
        first: list[ho.Instruction] = [ho.Subscribe("copies")] if self._copies else []
        return first if self._source else [*first, ho.Subscribe("queue")]

    def _subscribed(self, role: ho.Role) -> list[ho.Instruction]:
        if role == "copies" and self.phase is Phase.COPYING and self._source is not None:
            return [ho.FetchPage(self._source, SpoolPageRequest(self.name))]
        if role == "queue":
            self.phase = Phase.MEMBER
            return self._answer_pending()
        return [ho.Drain("queue")] if role == "plain" else []

    def _copy(self, page: SpoolPage) -> list[ho.Instruction]:
        """First what the source has, then the copies it sent meanwhile."""
        found = [ho.HandoverMessage(entry.topic, entry.id, entry.payload) for entry in page.entries]
        then: ho.Instruction = ho.Subscribe("queue")
        if page.more:
            assert self._source is not None
            last = page.entries[-1]
            then = ho.FetchPage(self._source, SpoolPageRequest(self.name, (last.topic, last.number)))
        else:
            found += self._buffered
            self._buffered = []
            self.phase = Phase.JOINING
        return [*(ho.Keep(one) for one in found if self._received[one.topic].is_new(one.id)), then]

    # Members

    def _change_members(self, command: MembersChanged) -> list[ho.Instruction]:
        if not self.is_hosted or command.epoch < self.epoch:
            return [ho.Done(command)]
        self.epoch = command.epoch
        self._shared = command.members > 1
        self._deduplicate()
        return [*self._share(self._shared), ho.Done(command)]

    def _share_spool(self, request: SpoolPageRequest) -> list[ho.Instruction]:
        """From now on copies are sent as well, so that nothing is missed between the last page and the joining."""
        if not self.is_hosted:
            return [ho.Refuse(request, "it does not have the topic")]
        self._shared = True
        self._deduplicate()  # the one that joins may fail and hand over to this one
        return [*self._share(True), ho.Done(request)]

    def _share(self, on: bool) -> list[ho.Instruction]:
        if self.phase in _JOINING:  # copies are needed until it has joined
            return []
        self.sends_copies = on
        if on == self._copies:
            return []
        self._copies = on
        return [ho.Subscribe("copies") if on else ho.Drain("copies")]

    # Leaving

    def _leave(self, command: LeaveTopic) -> list[ho.Instruction]:
        if self.is_hosted and command.epoch < self.epoch:
            return [
                ho.Refuse(command, f"topic {self.name} is held with epoch {self.epoch}, newer than {command.epoch}")
            ]
        if self.phase in _JOINING:
            return [ho.Refuse(command, f"topic {self.name} is still being copied here")]
        if self.phase is Phase.MEMBER:
            self.phase = Phase.STEPPING_ASIDE
            self.epoch = command.epoch  # what it still processes is marked in the epoch in which it leaves
            self._pending = [command]
            self._towards, self._settle = command.towards, command.settle
            return [ho.Subscribe("plain") if command.towards else ho.Drain("queue")]
        recalled = [host for host in self._returning if host.epoch <= command.epoch]
        self._returning = [host for host in self._returning if host not in recalled]
        refused: list[ho.Instruction] = [
            ho.Refuse(host, f"topic {self.name} was left with epoch {command.epoch}") for host in recalled
        ]
        if self.phase is Phase.STEPPING_ASIDE:
            self._pending.append(command)
            return refused
        return [*refused, ho.Done(command)]

    def _drained(self, role: ho.Role, now: float) -> list[ho.Instruction]:
        if role == "plain":
            return [ho.StartTimer(self._hold, ho.HoldOver())]
        if role == "copies":
            return [ho.AwaitIdle()] if self.phase is Phase.FINISHING else []
        if self._towards is None:
            return [*self._answer_pending(), *self._finish()]
        # What the queue group gave has come; the rest is for the other member.
        self.phase = Phase.FORWARDING
        forwarded: list[ho.Instruction] = []
        for publication in self._passed:
            key = (publication.topic, publication.id or publication.payload)
            if self._taken[key] > 0:
                self._taken[key] -= 1
            else:
                forwarded += self._forward(publication, now)
        self._passed = []
        self._taken.clear()
        return [*forwarded, *self._answer_pending(), ho.StartTimer(self._settle, ho.SettleOver())]

    def _forward(self, publication: ho.HandoverMessage, now: float) -> list[ho.Instruction]:
        assert self._towards is not None
        if not publication.id:  # another worker that left hands over the same: then one is enough
            self._received[publication.topic].note_payload(publication.payload, now)
        return [ho.Forward(self._towards, publication)]

    def _finish(self) -> list[ho.Instruction]:
        self.phase = Phase.FINISHING
        if self._copies:  # before it waits: a copy that comes later would be put nowhere
            self._copies = False
            return [ho.Drain("copies")]
        return [ho.AwaitIdle()]

    def _end(self) -> list[ho.Instruction]:
        if self.held:  # handed over at the last moment; it is to be forwarded
            return [ho.StartTimer(self._hold, ho.HoldOver())]
        self.phase = Phase.ABSENT
        return [*(ho.Refuse(command, self._failure) for command in self._pending), ho.Forget(tuple(self._returning))]

    def _answer_pending(self) -> list[ho.Instruction]:
        answered, self._pending = self._pending, []
        return [ho.Done(command) for command in answered]

    # What others hand over

    def _handed_over(self, publication: ho.HandoverMessage, now: float) -> list[ho.Instruction]:
        if self._received[publication.topic].knows(publication.id):
            return []
        if self._shared or not publication.id:
            self.held += 1
            return [ho.StartTimer(self._hold, ho.HoldExpired(publication))]
        return self._release(publication, now)

    def _release(self, publication: ho.HandoverMessage, now: float) -> list[ho.Instruction]:
        received = self._received[publication.topic]
        if publication.id:
            if not received.is_new(publication.id):
                return []
        elif received.matches_payload(publication.payload, now):
            return []
        if self.phase in _PROCESSING:
            return [ho.Process(publication)]
        return [ho.Forward(self._towards, publication)] if self._towards else [ho.Discard(publication)]

    def _deduplicate(self) -> None:
        self._received.remember(5 * self._hold)  # it may be held at several workers, one after the other
