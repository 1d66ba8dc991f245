"""Processors: user code that turns a publication, given the topic's recent past, into notifications."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import msgspec

from nearcast.domain.topic import check_pattern, covers
from nearcast.errors import InputError
from nearcast.message import Message
from nearcast.nats.stamp import header_block

__all__ = ["ProcessorError", "ProcessorSpec", "SpoolView", "find_processor", "load_processors", "processor"]

T = TypeVar("T", bound=Callable[..., Any])
_MARK = "__nearcast_processors__"


class ProcessorError(InputError):
    """A processor that cannot be found, loaded or used."""


class ProcessorSpec(msgspec.Struct, frozen=True):
    """What a decorated function or class promises: the topics it handles, the past it needs, how long it may take."""

    pattern: str
    spool: int
    timeout: float


def processor(pattern: str, *, spool: int = 100, timeout: float = 5.0) -> Callable[[T], T]:
    """Mark a function, or a class with a method `process`, as the processor of the topics a pattern stands for.

    It is called as `f(message, spool)` and returns one notification, yields several, or returns None for none.
    It may be `async`. Bytes are sent as they are, everything else as JSON.
    """
    check_pattern(pattern)
    if not isinstance(spool, int) or spool < 1:
        raise ProcessorError(
            f"processor {pattern!r}: spool is {spool!r}; a whole number of messages, at least 1, is needed"
        )
    if timeout <= 0:
        raise ProcessorError(f"processor {pattern!r}: timeout is {timeout!r}; seconds above 0 are needed")

    def mark(target: T) -> T:
        if inspect.isclass(target) and not callable(getattr(target, "process", None)):
            raise ProcessorError(
                f"processor {pattern!r}: class {target.__name__} has no method `process(message, spool)`"
            )
        setattr(target, _MARK, (*getattr(target, _MARK, ()), ProcessorSpec(pattern, spool, timeout)))
        return target

    return mark


def load_processors(modules: Sequence[str], search_path: Sequence[str] = ()) -> dict[ProcessorSpec, Callable[..., Any]]:
    """Import modules and collect their processors: what each promises, and what to call (or make, for a class)."""
    sys.path[:0] = [folder for folder in search_path if folder not in sys.path]
    found: dict[ProcessorSpec, Callable[..., Any]] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            raise ProcessorError(f"module {name!r} cannot be imported: {type(error).__name__}: {error}") from error
        targets = [value for value in vars(module).values() if getattr(value, _MARK, None)]
        if not targets:
            raise ProcessorError(f'module {name!r} has no processor; mark one with @processor("topic")')
        found |= {spec: target for target in targets for spec in getattr(target, _MARK)}
    return found


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
    """The messages that came before the one in hand, oldest first: read-only, at most the spool's size.

    A message is made when it is first looked at and kept until it leaves the spool, so that code which goes through
    the whole spool for every message does not make (or parse) it all anew.
    """

    __slots__ = ("_cache", "_end", "_size", "_spool", "_start", "_topic")

    def __init__(self, spool: SpoolReader, topic: str, size: int) -> None:
        self._spool, self._topic, self._size = spool, topic, size
        self._start = self._end = 0
        self._cache: dict[int, Message] = {}

    def advance(self, number: int) -> None:
        """Make the view end just before the message of that number."""
        start = max(number - self._size, self._spool.start, 0)
        if self._cache:
            for gone in range(self._start, start):
                self._cache.pop(gone, None)
        self._start, self._end = start, number

    def __len__(self) -> int:
        return self._end - self._start

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return [self._message(self._start + i) for i in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"spool of {self._topic} has {size} messages, not one at {index}")
        return self._message(self._start + index % size)

    def __iter__(self) -> Iterator[Message]:
        return map(self._message, range(self._start, self._end))

    def __reversed__(self) -> Iterator[Message]:
        return map(self._message, range(self._end - 1, self._start - 1, -1))

    def _message(self, number: int) -> Message:
        message = self._cache.get(number)
        if message is None:
            message_id, payload = self._spool.read(number)
            message = self._cache[number] = Message(self._topic, payload, header_block(message_id))
        return message
