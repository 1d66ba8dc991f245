"""Runs a processor against given messages in this process: no server, no second process, the same calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from nearcast.codec import JSON
from nearcast.domain.topic import check_topic
from nearcast.message import Message
from nearcast.nats.stamp import dead_letter_block, header_block, notification_id
from nearcast.processors import (
    Processor,
    ProcessorCall,
    ProcessorError,
    failure_reason,
    find_processor,
    marked_processors,
)

__all__ = ["Outcome", "run_processor"]


@dataclass(frozen=True)
class Outcome:
    """What became of one message: its notifications, or the reason with which it would be a dead letter."""

    message: Message
    notifications: list[Message]
    reason: str = ""


def run_processor(target: Any, messages: Iterable[Any], *, topic: str = "") -> list[Outcome]:
    """Call a function or class marked with `@processor` for each message, in order; a class is made once.

    messages: values as they would be published (bytes as they are, all else as JSON), or `Message` objects.
    topic:    what values are published to; needed when the processor's pattern has wildcards.

    Each topic has its own spool. A processor that takes longer than its timeout is not ended here, but fails.

    >>> from nearcast import processor
    >>> @processor("speed")
    ... def speeding(message, spool):
    ...     if message.data > 50:
    ...         return {"too_fast": message.data, "before": [m.data for m in spool]}
    >>> [n.data for outcome in run_processor(speeding, [40, 60]) for n in outcome.notifications]
    [{'too_fast': 60, 'before': [40]}]
    """
    marked = marked_processors(target)
    if not marked:
        raise ProcessorError(
            f'{getattr(target, "__name__", target)!r} is no processor; mark it with @processor("topic")'
        )
    if not topic and len(marked) == 1 and not {"*", ">"} & set(marked[0].spec.pattern.split(".")):
        topic = marked[0].spec.pattern
    run = _Run(marked)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return [run.process(message, topic) for message in messages]
    with ThreadPoolExecutor(1) as thread:  # an async processor needs an event loop of its own
        return list(thread.map(lambda message: run.process(message, topic), messages))


class _MemorySpool:
    """A spool without a file."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[tuple[bytes, bytes]] = []

    def read(self, number: int) -> tuple[bytes, bytes]:
        return self.entries[number]


class _Run:
    def __init__(self, marked: tuple[Processor, ...]) -> None:
        self._processors = {one.spec: one for one in marked}
        self._calls: dict[str, Any] = {}  # by pattern, as in a worker
        self._topics: dict[str, tuple[_MemorySpool, ProcessorCall, Processor]] = {}

    def process(self, given: Any, topic: str) -> Outcome:
        if isinstance(given, Message):
            topic, message_id, payload = given.topic, given.id.encode(), given.payload
        else:
            message_id, payload = b"", given if isinstance(given, bytes) else JSON.encode(given)
        if not topic:
            raise ProcessorError("the processor's pattern stands for several topics; say which one with `topic=`")
        spool, call, processor = self._topics.get(topic) or self._add(topic)
        message_id = message_id or b"test:test:%d:%d" % (time.time_ns() // 1000, len(spool.entries))
        spool.entries.append((message_id, payload))
        started = time.monotonic()
        try:
            made, reason = call.process(len(spool.entries) - 1), ""
        except Exception as error:
            made, reason = [], failure_reason(error)
        if time.monotonic() - started > processor.spec.timeout:
            made, reason = [], f"took longer than {processor.spec.timeout:g} s"
        notifications: list[Message] = [
            Message(topic, body, header_block(notification_id(message_id, n))) for n, body in enumerate(made)
        ]
        headers = dead_letter_block(message_id, reason) if reason else header_block(message_id)
        return Outcome(Message(topic, payload, headers), notifications, reason)

    def _add(self, topic: str) -> tuple[_MemorySpool, ProcessorCall, Processor]:
        processor = self._processors[find_processor(self._processors, check_topic(topic))]
        pattern = processor.spec.pattern
        if pattern not in self._calls:
            self._calls[pattern] = processor.callable()
        spool = _MemorySpool()
        made = spool, ProcessorCall(processor, self._calls[pattern], spool, topic), processor
        self._topics[topic] = made
        return made
