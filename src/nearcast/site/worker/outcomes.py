"""What becomes of a publication: its notifications are sent, it is given up, and (durable topics) it is marked."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from nearcast.domain.latency_histogram import bucket
from nearcast.nats import message_spans, subjects
from nearcast.nats.stamp import (
    RESERVED_BYTES,
    dead_letter_block,
    dead_letter_id,
    header_block,
    late_block,
    notification_id,
    settlement_block,
)
from nearcast.nats.stream_publisher import decode_acknowledgement
from nearcast.nats.tasks import repeat
from nearcast.protocol.marks import Settlement
from nearcast.site.worker.notification_receipts import NotificationReceipts

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.nats.connection import Connection
    from nearcast.protocol.worker import WorkerStats
    from nearcast.site.worker.mark_log import MarkLog
    from nearcast.site.worker.processing_record import SourceRecord
    from nearcast.site.worker.processor_process import Ticket
    from nearcast.site.worker.topics import HostedTopic

__all__ = ["Outcomes"]

_log = logging.getLogger(__name__)
_SAMPLED = 4  # one message in so many has its time in the worker taken; a power of two
_OVERFLOW = "more publications waited than the worker has memory for"
_EXPIRY_PERIOD = 0.5

_Finished = tuple["HostedTopic", bytes, bytes, int, "SourceRecord | None", int]
"""A publication's topic, id and payload, the attempt, and the source and number, if it is known by these."""


class Outcomes:
    """Of one worker. send: takes a subject, headers, a payload and perhaps a reply subject."""

    def __init__(
        self, site: str, connection: Connection, send: Callable[..., None], marks: MarkLog, stats: WorkerStats
    ) -> None:
        self._home, self._connection = [site.encode()], connection
        self._send, self._marks, self._stats = send, marks, stats
        self._largest_payload = connection.max_payload - RESERVED_BYTES
        self._receipts: NotificationReceipts[_Finished] = NotificationReceipts(site)
        self._inbox = connection.new_inbox()

    async def run(self) -> None:
        """Take acknowledgements until cancelled."""
        await self._connection.subscribe_raw(f"{self._inbox}.*.*", self._acknowledged)
        await repeat(self._expire_receipts, _EXPIRY_PERIOD, "what stores did not acknowledge is not given up")

    def _expire_receipts(self) -> None:
        for topic, message_id, *_ in self._receipts.expire(time.monotonic()):
            name = message_id.decode(errors="replace")
            _log.warning("topic %s, message %s: no store has its notifications", topic.name, name)
            topic.record.leave(message_id)  # a store gives it again

    def done(self, topic: HostedTopic, ticket: Ticket, notifications: list[bytes]) -> None:
        """The processor has an outcome."""
        for payload in notifications:
            if len(payload) > self._largest_payload:  # the broker would cut the worker off
                limit = f"at most {self._largest_payload} are allowed"
                self.failed(topic, ticket, f"the processor made a notification of {len(payload)} bytes; {limit}")
                return
        stats = self._stats
        origin, publication = topic.spool.read(ticket.number)
        stats.processed += 1
        topic.processed += 1
        if not topic.processed & (_SAMPLED - 1):
            topic.latency[bucket(1000 * (time.monotonic() - ticket.arrived))] += 1
        if origin.split(b":", 2)[1:2] != self._home:
            stats.delegated += 1
        stats.notified += len(notifications)
        if message_spans.active is not None:
            seconds = time.monotonic() - ticket.arrived
            message_spans.active.processed(origin, topic.name, seconds, len(notifications))
        reply, finished = "", None
        if topic.durable:
            finished = (topic, origin, publication, ticket.attempt, ticket.source, ticket.source_number)
            reply = self._reply(finished, len(notifications)) if notifications else ""
        for n, payload in enumerate(notifications):
            made = notification_id(origin, n)
            headers = late_block(made, ticket.attempt) if ticket.attempt else header_block(made)
            self._send(topic.notifications, headers, payload, f"{reply}.{n}" if reply else "")
        if finished is not None and not reply:
            self._finish(finished)

    def failed(self, topic: HostedTopic, ticket: Ticket, reason: str) -> None:
        """The processor could not handle it."""
        message_id, payload = topic.spool.read(ticket.number)
        _log.warning("topic %s, message %s: %s", topic.name, message_id.decode(errors="replace"), reason)
        self._give_up(topic, message_id, payload, ticket.attempt, reason)

    def refused(self, topic: HostedTopic, message_id: bytes, payload: bytes, reason: str) -> None:
        """It is not given to the processor, now or later."""
        self._give_up(topic, message_id, payload, 0, reason)

    def killed(self, topic: HostedTopic, ticket: Ticket) -> Ticket | None:
        """The processor's process was killed: a durable topic's publication has further attempts, a retried one not."""
        attempts = ticket.attempt + 1
        if not topic.durable or attempts >= topic.family.spec.max_attempts:
            return None
        if topic.spool.read(ticket.number)[0] in topic.record.retried:  # its letter is known by its attempt
            return None
        return replace(ticket, attempt=attempts)

    def overflowed(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int) -> None:
        """A publication that there is no room for. One of a durable topic is not marked: a store gives it again."""
        if topic.durable:
            topic.deferred += 1
            self._stats.deferred += 1
        else:
            self._give_up(topic, message_id, payload, attempt, _OVERFLOW)

    def _give_up(self, topic: HostedTopic, message_id: bytes, payload: bytes, attempt: int, reason: str) -> None:
        topic.dead_letters += 1
        self._stats.dead_letters += 1
        if message_spans.active is not None:
            message_spans.active.failed(message_id, topic.name, reason)
        finished = (topic, message_id, payload, attempt, None, 0)
        reply = self._reply(finished, 1) if topic.durable else ""
        headers = dead_letter_block(message_id, reason, attempt + 1)
        self._send(subjects.dead_letters(topic.name), headers, payload, f"{reply}.0" if reply else "")
        if topic.durable and not reply:
            self._finish(finished)

    def _reply(self, finished: _Finished, count: int) -> str:
        """Where so many messages are acknowledged, before the publication is finished; nothing if it need not wait."""
        if not self._receipts.needed(finished[0].family.spec.replicas, self._connection.link):
            return ""
        return f"{self._inbox}.{self._receipts.expect(finished, count, time.monotonic())}"

    def _finish(self, finished: _Finished) -> None:
        """A publication of a durable topic is marked; one that was a dead letter was, and that letter is settled."""
        topic, message_id, payload, attempt, source, number = finished
        if topic.record.retried and message_id in topic.record.retried:
            topic.record.leave(message_id)
            settled = settlement_block(dead_letter_id(message_id, attempt))
            self._send(subjects.settlements(topic.name), settled, Settlement.RETRIED)
        elif source is not None:
            self._marks.note_number(topic, source, number)
        else:
            self._marks.note(topic, message_id, payload)

    def _acknowledged(self, subject: str, reply: str, payload: bytes, headers: bytes) -> None:
        token, _, number = subject[len(self._inbox) + 1 :].partition(".")
        if payload and (answer := decode_acknowledgement(payload)).error is None:
            self._receipts.heard(answer.domain, self._connection.link)
            finished = self._receipts.stored(int(token), int(number))
            if finished is not None:
                self._finish(finished)
