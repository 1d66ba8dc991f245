"""The spool: the last messages of a topic at a site, in a file that two processes map into memory.

The worker's NATS side appends, the process that runs user code reads, and neither copies for the other. The file
outlives both, so a processor that dies finds its past again. Appending is O(1): an index ring of fixed slots and an
arena ring of bytes; when the arena is too small for the messages that are needed it is copied once into a larger file,
as a list grows.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Spool"]

_HEADER = struct.Struct("<8sQQQQQQ")  # magic, slots, arena bytes, messages so far, arena head, 1 when moved, start
_COUNT = struct.Struct("<QQ")  # messages so far, arena head
_NUMBER = struct.Struct("<Q")
_SLOT = struct.Struct("<QII")  # offset in the arena, length of the id, length of the payload
_MAGIC = b"NCSPOOL1"
_COUNT_AT = 24
_MOVED_AT = 40
_START_AT = 48
_INDEX_AT = 64
_SMALLEST_ARENA = 1 << 12


class Spool:
    """A ring of (id, payload), numbered from 0 in the order they were appended.

    slots: how many of the last messages stay readable. oldest_needed: gives the number of the oldest message that is
    still needed, should the arena be too small for all of them; without it all are. read_ahead, read_ahead_bytes: how
    many of the slots are for messages that wait to be processed, and how large these may be, all told. reader_group:
    of a process with other rights that may read the file.
    """

    def __init__(
        self,
        path: Path,
        slots: int,
        arena: int = _SMALLEST_ARENA,
        *,
        oldest_needed: Callable[[], int] | None = None,
        read_ahead: int = 0,
        read_ahead_bytes: int = 0,
        reader_group: int | None = None,
    ) -> None:
        """Open the spool at a path, or make it. One of another size is carried over."""
        if slots < 1:
            raise NearcastError(f"spool {path}: {slots} slots; at least 1 is needed")
        self.path, self.slots, self.arena = path, slots, arena
        self._oldest_needed, self._writes = oldest_needed, True
        self._read_ahead, self._read_ahead_bytes = read_ahead, read_ahead_bytes
        self._reader_group = reader_group
        self.count = self.head = self.start = 0
        self.reload() if path.exists() else self._make(path)
        self._let_read(path)  # one of before may have had another group
        if self.slots != slots:
            self._move(slots, self.arena)

    @classmethod
    def open_for_reading(cls, path: Path) -> Spool:
        """Open a spool another process writes; `refresh` before reading."""
        spool = cls.__new__(cls)
        spool.path, spool._writes = path, False
        spool.reload()
        return spool

    @property
    def first(self) -> int:
        """The number of the oldest message still readable."""
        return max(self.start, self.count - self.slots)

    def append(self, message_id: bytes, payload: bytes) -> int:
        """Add a message, dropping the oldest when all slots are in use; its number is returned."""
        size = max(1, len(message_id) + len(payload))
        while (offset := self._room(size)) < 0:
            if not self._release():
                self._move(self.slots, self._larger(size))
        number, split, end = self.count, offset + len(message_id), offset + len(message_id) + len(payload)
        memory, base = self._map, self._arena_at
        memory[base + offset : base + split] = message_id
        memory[base + split : base + end] = payload
        _SLOT.pack_into(memory, _INDEX_AT + number % self.slots * _SLOT.size, offset, len(message_id), len(payload))
        self.count, self.head = number + 1, offset + size
        _COUNT.pack_into(memory, _COUNT_AT, self.count, self.head)
        return number

    def read(self, number: int) -> tuple[bytes, bytes]:
        """The id and payload of a message that is still in the ring."""
        offset, id_length, length = _SLOT.unpack_from(self._map, _INDEX_AT + number % self.slots * _SLOT.size)
        start = self._arena_at + offset
        split = start + id_length
        return self._map[start:split], self._map[split : split + length]

    def refresh(self) -> None:
        """Follow the writer to its new file when it has moved."""
        if self._map[_MOVED_AT]:
            self.close()
            self.reload()

    def reload(self) -> None:
        """Map the file that is at the path now."""
        with self.path.open("r+b" if self._writes else "rb") as file:
            access = mmap.ACCESS_WRITE if self._writes else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fileno(), 0, access=access)
        magic, self.slots, self.arena, self.count, self.head, _, self.start = _HEADER.unpack_from(self._map, 0)
        if magic != _MAGIC:
            raise NearcastError(f"spool {self.path} is not a spool file; remove it")
        self._arena_at = _INDEX_AT + self.slots * _SLOT.size

    def close(self) -> None:
        """Let go of the memory; the file stays."""
        self._map.close()

    def _room(self, size: int) -> int:
        """Where `size` bytes fit once the slot they take is free, or -1 when the arena must grow."""
        oldest = max(self.start, self.count + 1 - self.slots)
        if oldest >= self.count:  # nothing to keep
            return 0 if size <= self.arena else -1
        tail = _SLOT.unpack_from(self._map, _INDEX_AT + oldest % self.slots * _SLOT.size)[0]
        head = self.head
        if head > tail:
            if head + size <= self.arena:
                return head
            return 0 if size < tail else -1
        return head if head + size < tail else -1

    def _release(self) -> bool:
        """Let go of messages that are not needed any more, though they have slots; whether there were any."""
        needed = self.start if self._oldest_needed is None else self._oldest_needed()
        if needed <= self.first:
            return False
        self.start = needed
        _NUMBER.pack_into(self._map, _START_AT, needed)
        return True

    def _larger(self, size: int) -> int:
        """Room for all slots if messages stay as large as the last ones; a quarter more if that is not enough."""
        last = range(max(self.first, self.count - 64), self.count)
        lengths = [sum(_SLOT.unpack_from(self._map, _INDEX_AT + n % self.slots * _SLOT.size)[1:]) for n in last]
        each = (sum(lengths) + size) / (len(lengths) + 1)
        ahead = min(self._read_ahead * each, float(self._read_ahead_bytes))
        expected = int(1.02 * ((self.slots - self._read_ahead) * each + ahead)) + size
        wanted = expected if expected > self.arena else self.arena + (self.arena >> 2)
        return max(min(wanted, 16 * self.arena), size + 1)

    def _make(self, path: Path) -> None:
        size = _INDEX_AT + self.slots * _SLOT.size + self.arena
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            self._let_read(descriptor)
            os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._arena_at = _INDEX_AT + self.slots * _SLOT.size
        _HEADER.pack_into(self._map, 0, _MAGIC, self.slots, self.arena, self.count, self.head, 0, self.start)

    def _let_read(self, file: int | Path) -> None:
        if self._reader_group is not None:
            os.chown(file, -1, self._reader_group)
            os.chmod(file, 0o640)

    def _move(self, slots: int, arena: int) -> None:
        """Copy what is kept into a larger file, put it in place of this one, and leave a note in the old one."""
        kept = [self.read(number) for number in range(max(self.first, self.count - slots), self.count)]
        old, fresh = self._map, self.path.with_suffix(".new")
        self.slots, self.arena = slots, max(arena, sum(max(1, len(i) + len(p)) for i, p in kept) + 1)
        self.count = self.start = self.count - len(kept)
        self.head = 0
        self._make(fresh)
        for message_id, payload in kept:
            self.append(message_id, payload)
        fresh.replace(self.path)
        with contextlib.suppress(ValueError):
            old[_MOVED_AT] = 1
            old.close()
