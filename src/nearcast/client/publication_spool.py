"""The spool of a publisher: a bounded file of publications that no quorum of stores has acknowledged yet.

Entries are appended: a publication before it is sent, a receipt when its stores have it. What a killed process leaves
is read by the next one of the same path; an entry that was torn ends the file. When nothing waits the file is emptied,
and when most of it is done it is written again.

    entry: length of the body (4 bytes), CRC-32 of the body (4 bytes), body: msgpack
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from pathlib import Path

import msgspec

from nearcast.client.acknowledgements import QuorumPublication
from nearcast.errors import InputError, NearcastError

__all__ = ["PublicationSpool", "SpoolFullError"]

_HEAD = struct.Struct("<II")
_COMPACT_ABOVE = 1 << 20


class SpoolFullError(NearcastError, BufferError):
    """The spool is full: no quorum has answered for long. Nothing was published."""


_Entry = QuorumPublication | str  # a publication, or the id of one that is done
_decode = msgspec.msgpack.Decoder(_Entry).decode
_encode = msgspec.msgpack.Encoder().encode


class PublicationSpool:
    """The file. No network, no clock; payloads stay in the file until they are asked for."""

    def __init__(self, path: str | Path, limit: int) -> None:
        """limit: bytes of the file. Raises InputError when it cannot be used."""
        self._path, self._limit = Path(path), limit
        self._waiting: dict[str, tuple[int, int]] = {}  # id -> offset and length of its entry
        try:
            self._file = self._open(self._path)
        except OSError as error:
            raise InputError(f"spool {str(path)!r} cannot be used: {error}") from error
        self._size = self._recover()
        self._live = sum(length for _, length in self._waiting.values())

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> list[str]:
        """Ids of the publications without a receipt, oldest first."""
        return list(self._waiting)

    def append(self, publication: QuorumPublication) -> None:
        """Keep a publication. Raises SpoolFullError when it does not fit."""
        entry = _pack(publication)
        if self._size + len(entry) > self._limit:
            self._compact()
        if self._size + len(entry) > self._limit:
            raise SpoolFullError(
                f"topic {publication.topic}: the spool {str(self._path)!r} is full ({self._size} bytes, "
                f"{len(self)} publications wait for their stores)"
            )
        offset = self._size
        self._write(entry)
        self._waiting[publication.id] = offset, len(entry)
        self._live += len(entry)

    def read(self, message_id: str) -> QuorumPublication:
        """A publication that waits."""
        offset, length = self._waiting[message_id]
        found = _decode(os.pread(self._file, length, offset)[_HEAD.size :])
        assert isinstance(found, QuorumPublication)
        return found

    def done(self, message_id: str) -> None:
        """Its stores have it, or it will never be sent."""
        found = self._waiting.pop(message_id, None)
        if found is None:
            return
        self._live -= found[1]
        if not self._waiting:
            os.ftruncate(self._file, 0)
            self._size = 0
            return
        self._write(_pack(message_id))
        if self._size > min(self._limit, max(_COMPACT_ABOVE, 2 * self._live)):
            self._compact()

    def sync(self) -> None:
        """Have the disk take what was written: against a power cut. A killed process loses nothing without it."""
        os.fdatasync(self._file)

    def close(self) -> None:
        """What waits is read by the next one of this path."""
        os.close(self._file)

    def _write(self, entry: bytes) -> None:
        written = os.pwrite(self._file, entry, self._size)
        if written != len(entry):
            raise NearcastError(f"spool {str(self._path)!r}: the disk is full")
        self._size += written

    def _recover(self) -> int:
        """Read what an earlier process left, up to the first entry that is not whole. Returns where the file ends."""
        content, offset = os.pread(self._file, os.fstat(self._file).st_size, 0), 0
        while offset + _HEAD.size <= len(content):
            length, checksum = _HEAD.unpack_from(content, offset)
            body = content[offset + _HEAD.size : offset + _HEAD.size + length]
            if len(body) != length or zlib.crc32(body) != checksum:
                break
            try:
                entry = _decode(body)
            except msgspec.DecodeError:
                break
            if isinstance(entry, str):
                self._waiting.pop(entry, None)
            else:
                self._waiting[entry.id] = offset, _HEAD.size + length
            offset += _HEAD.size + length
        os.ftruncate(self._file, offset)
        return offset

    def _compact(self) -> None:
        """Write what waits into a new file that takes the place of this one at once."""
        temporary = self._path.with_name(self._path.name + ".new")
        file = self._open(temporary)
        os.ftruncate(file, 0)
        waiting, size = {}, 0
        for message_id, (offset, length) in self._waiting.items():
            entry = os.pread(self._file, length, offset)
            if os.pwrite(file, entry, size) != length:
                os.close(file)
                temporary.unlink()
                raise NearcastError(f"spool {str(self._path)!r}: the disk is full")
            waiting[message_id] = size, length
            size += length
        os.fdatasync(file)
        temporary.replace(self._path)
        os.close(self._file)
        self._file, self._waiting, self._size = file, waiting, size

    @staticmethod
    def _open(path: Path) -> int:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise OSError("another process uses it") from None
        return file


def _pack(entry: _Entry) -> bytes:
    body = _encode(entry)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body
