"""Processors: user code that turns a publication, given the topic's recent past, into notifications."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import deque
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, overload

import msgspec

from nearcast.codec import JSON, typed_decoder
from nearcast.domain.topic import check_pattern, covers
from nearcast.errors import InputError
from nearcast.message import Message, PayloadError
from nearcast.nats.stamp import header_block, late_block

__all__ = [
    "Processor",
    "ProcessorCall",
    "ProcessorError",
    "ProcessorSpec",
    "SpoolReader",
    "SpoolView",
    "failure_reason",
    "find_processor",
    "load_processors",
    "marked_processors",
    "processor",
]

T = TypeVar("T", bound=Callable[..., Any])
_MARK = "__nearcast_processors__"


class ProcessorError(InputError):
    """A processor that cannot be found, loaded or used."""


class ProcessorSpec(msgspec.Struct, frozen=True):
    """What a decorated function or class promises: the topics it handles, the past it needs, how long it may take."""

    pattern: str
    spool: int
    timeout: float


@dataclass(frozen=True)
class Processor:
    """A marked function or class: what it promises, what to call (or make, for a class), how payloads are decoded.

    decode: None for JSON of any shape, decoded when user code asks for it.
    """

    spec: ProcessorSpec
    target: Callable[..., Any]
    decode: Callable[[bytes], Any] | None = None

    def callable(self) -> Callable[..., Any]:
        """The function, or the method `process` of a new object."""
        if not inspect.isclass(self.target):
            return self.target
        made: Any = self.target()
        return made.process  # type: ignore[no-any-return]


def processor(
    pattern: str,
    *,
    spool: int = 100,
    timeout: float = 5.0,
    type: Any = None,  # noqa: A002
) -> Callable[[T], T]:
    """Mark a function, or a class with a method `process`, as the processor of the topics a pattern stands for.

    It is called as `f(message, spool)` and returns one notification, yields several, or returns None for none.
    It may be `async`. Bytes are sent as they are, everything else as JSON.

    type: what payloads are decoded and validated as, by msgspec. A message of another shape becomes a dead letter,
    and is left out of the spool that the processor sees.
    """
    check_pattern(pattern)
    if not isinstance(spool, int) or spool < 1:
        raise ProcessorError(
            f"processor {pattern!r}: spool is {spool!r}; a whole number of messages, at least 1, is needed"
        )
    if timeout <= 0:
        raise ProcessorError(f"processor {pattern!r}: timeout is {timeout!r}; seconds above 0 are needed")
    try:
        decode = None if type is None else typed_decoder(type)
    except InputError as error:
        raise ProcessorError(f"processor {pattern!r}: {error}") from error

    def mark(target: T) -> T:
        if inspect.isclass(target) and not callable(getattr(target, "process", None)):
            raise ProcessorError(
                f"processor {pattern!r}: class {target.__name__} has no method `process(message, spool)`"
            )
        marked = Processor(ProcessorSpec(pattern, spool, timeout), target, decode)
        setattr(target, _MARK, (*marked_processors(target), marked))
        return target

    return mark


def marked_processors(target: Any) -> tuple[Processor, ...]:
    """What a function or class was marked as; nothing if it was not."""
    return getattr(target, _MARK, ())


def load_processors(modules: Sequence[str], search_path: Sequence[str] = ()) -> list[Processor]:
    """Import modules and collect their processors."""
    sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
    found: dict[ProcessorSpec, Processor] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise ProcessorError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
        marked = [one for value in vars(module).values() for one in marked_processors(value)]
        if not marked:
            raise ProcessorError(f'module {name!r} has no processor; mark one with @processor("topic")')
        found |= {one.spec: one for one in marked}
    return list(found.values())


def find_processor(specs: Iterable[ProcessorSpec], topic: str) -> ProcessorSpec:
    """The processor that handles a topic or a whole family of topics."""
    specs = list(specs)
    fitting = [spec for spec in specs if covers(spec.pattern, topic)]
    if len(fitting) == 1:
        return fitting[0]
    have = ", ".join(sorted(spec.pattern for spec in specs)) or "none"
    problem = "more than one processor handles it" if fitting else "no processor handles it"
    raise ProcessorError(f"topic {topic!r}: {problem}; the modules have: {have}")


class SpoolReader(Protocol):
    """What a view needs of a spool: messages by number, oldest first."""

    start: int

    def read(self, number: int) -> tuple[bytes, bytes]: ...


class SpoolView(Sequence[Message]):
    """The messages that came before the current one, oldest first: read-only, at most the spool's size.

    A message is made when it is first looked at and kept until it leaves the spool, so that code which goes through
    the whole spool for every message does not make (or parse) it all again. With a `decode` of a processor's own,
    messages are decoded as they come, and those that it refuses are left out.
    """

    __slots__ = ("_cache", "_decode", "_end", "_numbers", "_size", "_spool", "_start", "_topic")

    def __init__(self, spool: SpoolReader, topic: str, size: int, decode: Callable[[bytes], Any] | None = None) -> None:
        self._spool, self._topic, self._size, self._decode = spool, topic, size, decode
        self._start = self._end = 0
        self._numbers: range | deque[int] = range(0)
        self._cache: dict[int, Message] = {}

    def advance(self, number: int) -> None:
        """Make the view end just before the message of that number."""
        start = max(number - self._size, self._spool.start, 0)
        if self._cache:
            for gone in range(self._start, start):
                self._cache.pop(gone, None)
        self._numbers = range(start, number) if self._decode is None else self._readable(start, number)
        self._start, self._end = start, number

    def _readable(self, start: int, end: int) -> deque[int]:
        """The numbers of messages that can be decoded; those before the last end are known."""
        known, new = self._numbers, max(start, self._end)
        if not isinstance(known, deque) or end < self._end:
            known, new = deque(), start
        while known and known[0] < start:
            known.popleft()
        known.extend(number for number in range(new, end) if self._is_readable(number))
        return known

    def _is_readable(self, number: int) -> bool:
        try:
            self.message(number).data  # noqa: B018 - decoded once, and kept
        except PayloadError:
            self._cache.pop(number, None)
            return False
        return True

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        size = len(self._numbers)
        if isinstance(index, slice):
            return [self.message(self._numbers[i]) for i in range(*index.indices(size))]
        if not -size <= index < size:
            raise IndexError(f"spool of {self._topic} has {size} messages, not one at {index}")
        return self.message(self._numbers[index])

    def __iter__(self) -> Iterator[Message]:
        return map(self.message, self._numbers)

    def __reversed__(self) -> Iterator[Message]:
        return map(self.message, reversed(self._numbers))

    def message(self, number: int) -> Message:
        """A message by its number in the spool file; kept until it leaves the view."""
        message = self._cache.get(number)
        if message is None:
            message_id, payload = self._spool.read(number)
            message = Message(self._topic, payload, header_block(message_id), self._decode or JSON.decode)
            self._cache[number] = message
        return message


class ProcessorCall:
    """A processor with one topic's spool, ready to be called."""

    def __init__(self, processor: Processor, call: Callable[..., Any], spool: SpoolReader, topic: str) -> None:
        self._call, self._spool, self._topic, self._typed = call, spool, topic, processor.decode is not None
        self._decode = processor.decode or JSON.decode
        self._view = SpoolView(spool, topic, processor.spec.spool, processor.decode)

    def process(self, number: int, attempt: int = 0) -> list[bytes]:
        """The notifications made from the message of that number. attempt: of a late one."""
        self._view.advance(number)
        if self._typed and not attempt:
            message = self._view.message(number)
        else:
            message_id, payload = self._spool.read(number)
            headers = late_block(message_id, attempt) if attempt else header_block(message_id)
            message = Message(self._topic, payload, headers, self._decode)
        if self._typed:
            message.data  # noqa: B018 - raises PayloadError: user code sees only what it asked for
        outcome = self._call(message, self._view)
        if type(outcome) is bytes:
            return [outcome]
        if type(outcome) is dict:
            return [JSON.encode(outcome)]
        if inspect.iscoroutine(outcome):
            outcome = _await(outcome)
        if outcome is None:
            return []
        if inspect.isasyncgen(outcome):
            values = _await(_collect(outcome))
        else:
            values = outcome if inspect.isgenerator(outcome) else (outcome,)
        return [value if isinstance(value, bytes) else JSON.encode(value) for value in values]


def failure_reason(error: Exception) -> str:
    """Why a message could not be processed, as its dead letter says."""
    return f"{type(error).__name__}: {error}"


async def _collect(outcome: AsyncIterable[Any]) -> list[Any]:
    return [value async for value in outcome]


def _await(work: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # only async processors pay for an event loop

    global _loop
    if _loop is None:
        _loop = asyncio.new_event_loop()
    return _loop.run_until_complete(work)


_loop: Any = None
