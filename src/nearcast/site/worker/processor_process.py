"""The process that runs user code, seen from the worker: tickets out, outcomes in, a new one when it dies or hangs.

The current message is known at every moment: outcomes come back in the order tickets went out, so the first ticket
without an outcome is the current one. When the process dies, the others are sent to its successor; that one, too,
if somebody else killed the process and the worker wants another attempt. Else it is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import struct
import subprocess
import sys
from collections import defaultdict, deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.processors import ProcessorError, ProcessorSpec
from nearcast.site.worker.cage import Cage
from nearcast.site.worker.processor_main import (
    DONE,
    FAILED,
    OUTCOME,
    READY,
    TICKET,
    Announcement,
    Setup,
    announcement_frame,
    unpack_notifications,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.site.worker.processing_record import SourceRecord

__all__ = ["ProcessorProcess", "Ticket"]

_log = logging.getLogger(__name__)
_START_LIMIT = 60.0
_LOOK_EVERY = 0.05
_COUNT_EVERY = 1.0
# Outcomes of 4 KiB would fill the usual 64 KiB after sixteen, and the two processes would wait for each other.
_PIPE_BYTES = 1 << 20
_LAST_ERRORS = 4096
_RELAUNCH_PAUSE = 0.5
_LARGEST_OUTCOME = 64 << 20  # the worker holds it, whatever the limits of the processor are
_NO_OUTCOME = "what it wrote to the worker is no outcome, or one of more than 64 MiB"


class Ticket(msgspec.Struct, frozen=True):  # one is made for each message: a frozen dataclass takes three times as long
    """One message to process: its topic's number, its own number in the spool, and how long it may take.

    position, offset: how many messages, and bytes, the worker had put into spools, all told, when this one was.
    arrived: when it came, by the monotonic clock. attempt: of a late one, else 0. source, source_number: what it is
    known by, if its topic is durable and its id tells.
    """

    topic: int
    number: int
    timeout: float
    position: int
    arrived: float = 0.0
    attempt: int = 0
    offset: int = 0
    source: SourceRecord | None = None
    source_number: int = 0


class ProcessorProcess:
    """Runs tickets one at a time, in order.

    done:   called with a ticket and its notifications.
    failed: called with a ticket and the reason, once for each that was given up.
    killed: called with the current ticket when the process was killed, but not from here; gives the ticket of another
            attempt, or nothing.
    """

    def __init__(
        self,
        setup: Setup,
        done: Callable[[Ticket, list[bytes]], None],
        failed: Callable[[Ticket, str], None],
        killed: Callable[[Ticket], Ticket | None] = lambda ticket: None,
    ) -> None:
        self._setup, self._done, self._failed, self._killed = setup, done, failed, killed
        self.announced: dict[int, Announcement] = {}
        self.outstanding: deque[Ticket] = deque()
        self.busy: defaultdict[int, float] = defaultdict(float)  # seconds of processing, by topic number
        self._received = bytearray()
        self._since = 0.0  # when the current message was taken up
        self._ready = self._garbled = False
        self._killed_by_others = False
        self._verdict = ""
        self._errors = b""  # the end of what it wrote to standard error
        self._process: subprocess.Popen[bytes] | None = None
        self._tickets: asyncio.WriteTransport | None = None
        self._frames: list[bytes] = []  # to be written before the event loop waits
        self._readers: list[asyncio.ReadTransport] = []  # of outcomes, and of standard error
        self._ended = asyncio.Event()
        self.restarts = 0
        self.processors: list[ProcessorSpec] = []

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid if self._process else None

    def announce(self, announcement: Announcement) -> None:
        """Make a topic known to this process and its successors."""
        self.announced[announcement.number] = announcement
        self._write(announcement_frame(announcement))

    def retire(self, number: int) -> None:
        """Have this process let go of a topic, and tell its successors nothing of it."""
        self.announced.pop(number, None)
        self.busy.pop(number, None)
        self._write(announcement_frame(Announcement(number, "", "", "")))

    def submit(self, ticket: Ticket) -> None:
        """Send a message to the process."""
        if not self.outstanding:
            self._since = asyncio.get_running_loop().time()
        self.outstanding.append(ticket)
        self._write(TICKET.pack(ticket.topic, ticket.number, ticket.attempt))

    async def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Keep a process going until cancelled. Raises ProcessorError when the user's modules cannot be loaded."""
        try:
            while True:
                await self._launch()
                await self._until_it_ends(started)
                if not self._ready:
                    if not self._killed_by_others:
                        raise ProcessorError(self._verdict or "the processors could not be loaded")
                    await asyncio.sleep(_RELAUNCH_PAUSE)
                    continue
                self._give_up_current_message()
                self.restarts += 1
        finally:
            self._stop()

    async def _launch(self) -> None:
        ticket_reader, ticket_writer = os.pipe()
        outcome_reader, outcome_writer = os.pipe()
        for pipe in (ticket_writer, outcome_reader):
            with contextlib.suppress(OSError):  # more than an unprivileged process may have: the default must do
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._cage = cage = Cage(self._setup.limits)
        try:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                [sys.executable, "-m", "nearcast.site.worker.processor_main",
                 msgspec.json.encode(self._setup).decode(), str(ticket_reader), str(outcome_writer)],
                pass_fds=(ticket_reader, outcome_writer),
                stderr=subprocess.PIPE,
                **cage.options,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            cage.close()
            raise ProcessorError(f"the process of the processors cannot be started: {error}") from error
        finally:
            os.close(ticket_reader)
            os.close(outcome_writer)
        cage.entered(self._process.pid)
        self._ready, self._garbled, self._verdict, self._errors = False, False, "", b""
        self._received.clear()
        self._ended = asyncio.Event()  # of this process: the pipes of the one before may still be closing
        loop = asyncio.get_running_loop()
        tickets, outcomes = os.fdopen(ticket_writer, "wb", 0), os.fdopen(outcome_reader, "rb", 0)
        for reader, receive, ended in (
            (outcomes, self._take_outcomes, self._ended.set),
            (self._process.stderr, self._pass_on, lambda: None),
        ):
            transport, _ = await loop.connect_read_pipe(partial(_PipeReader, receive, ended), reader)
            self._readers.append(transport)
        writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, tickets)
        # Nothing is awaited from here on: what comes while it starts is in these frames, what comes later is written.
        frames = [*map(announcement_frame, self.announced.values())]
        frames += [TICKET.pack(ticket.topic, ticket.number, ticket.attempt) for ticket in self.outstanding]
        writer.write(b"".join(frames))
        self._tickets = writer

    async def _until_it_ends(self, started: Callable[[], None]) -> None:
        """Look now and then whether the current message has had its time."""
        clock = asyncio.get_running_loop().time
        launched = counted = clock()
        told = False
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._ended.wait()
            if self._process is not None and self._process.poll() is not None:
                self._ended.set()
            if self._ready and not told:
                told = True
                started()
            if clock() >= counted + _COUNT_EVERY and self._process is not None:
                counted = clock()
                if excess := self._cage.excess(self._process.pid):
                    self._kill(excess)
            if not self._ready:
                if clock() - launched > _START_LIMIT:
                    self._kill(f"the processors were not loaded within {_START_LIMIT:g} s")
            elif self.outstanding and clock() - self._since > self.outstanding[0].timeout:
                self._kill(f"took longer than {self.outstanding[0].timeout:g} s")
        self._collect()

    def _kill(self, verdict: str) -> None:
        if not self._verdict and self._process is not None:
            self._verdict = verdict
            self._cage.kill(self._process.pid)

    def _collect(self) -> None:
        """It has ended: take what is left in its pipes, and its exit code."""
        process = self._process
        assert process is not None
        self._cage.kill(process.pid)  # what it forked is of no use without it
        code = process.wait()
        self._verdict = self._verdict or self._cage.cause_of_death()
        self._cage.close()
        self._killed_by_others = code < 0 and not self._verdict
        # A process that user code forked may hold the pipes open forever: what is in them is all there is.
        for reader, receive in zip(self._readers, (self._take_outcomes, self._pass_on), strict=True):
            if not reader.is_closing():
                reader.pause_reading()
                _drain(reader.get_extra_info("pipe").fileno(), receive)
        self._close_pipes()
        errors = self._errors.decode(errors="replace").strip()
        if not self._verdict:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            last = errors.splitlines()[-1] if errors else ""
            self._verdict = last if not self._ready and last else f"the processor's process {how}"
        _log.warning("processor process %d: %s", process.pid, self._verdict)
        self._process = None

    def _pass_on(self, chunk: bytes) -> None:
        """Pass on what user code writes to standard error; a pipe nobody reads would fill up and stop it."""
        self._errors = (self._errors + chunk)[-_LAST_ERRORS:]
        print(chunk.decode(errors="replace"), end="", file=sys.stderr, flush=True)

    def _give_up_current_message(self) -> None:
        if not self.outstanding:
            return
        ticket = self.outstanding.popleft()
        again = self._killed(ticket) if self._killed_by_others else None
        if again is None:
            self._failed(ticket, self._verdict)
        else:
            self.outstanding.appendleft(again)  # before the others: they may be newer ones of its source

    def _write(self, frame: bytes) -> None:
        if self._tickets is not None:  # else the successor gets it when it starts
            if not self._frames:  # a write for each of them would take a tenth of the worker's time
                asyncio.get_running_loop().call_soon(self._write_frames)
            self._frames.append(frame)

    def _write_frames(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self._tickets is not None:
            self._tickets.write(b"".join(frames))

    def _take_outcomes(self, chunk: bytes) -> None:
        received, now = self._received, asyncio.get_running_loop().time()
        if self._garbled:
            return
        received += chunk
        at, end = 0, len(received)
        while end - at >= OUTCOME.size:
            kind, topic, number, length = OUTCOME.unpack_from(received, at)
            if length > _LARGEST_OUTCOME or not self._expects(kind, topic, number):
                self._refuse_outcomes()
                return
            if end - at < OUTCOME.size + length:
                break
            body = bytes(received[at + OUTCOME.size : at + OUTCOME.size + length])
            at += OUTCOME.size + length
            taken, self._since = now - self._since, now
            if kind == READY:
                try:
                    self.processors = msgspec.json.decode(body, type=list[ProcessorSpec])
                except msgspec.DecodeError:
                    self._refuse_outcomes()
                    return
                self._ready = True
                continue
            ticket = self.outstanding.popleft()
            self.busy[topic] += taken
            if kind == DONE:
                try:
                    notifications = unpack_notifications(body)
                except struct.error:
                    self.outstanding.appendleft(ticket)  # given up when the process has ended
                    self._refuse_outcomes()
                    return
                self._done(ticket, notifications)
            else:
                self._failed(ticket, body.decode(errors="replace"))
        del received[:at]

    def _refuse_outcomes(self) -> None:
        """Nothing that this process wrote or will write can be told from user code's."""
        self._garbled = True
        self._received.clear()
        self._kill(_NO_OUTCOME)

    def _expects(self, kind: int, topic: int, number: int) -> bool:
        """Whether an outcome can be one: the pipe is open to the user's code, too."""
        if kind == READY:
            return not self._ready
        current = self.outstanding[0] if self.outstanding else None
        return kind in (DONE, FAILED) and current is not None and (current.topic, current.number) == (topic, number)

    def _close_pipes(self) -> None:
        if self._tickets is not None and not self._tickets.is_closing():  # asyncio fails over one that was lost
            self._tickets.abort()
        for reader in self._readers:
            reader.close()
        self._tickets, self._readers, self._frames = None, [], []

    def _stop(self) -> None:
        if self._process is not None:
            self._cage.kill(self._process.pid)
            self._process.wait()
            self._cage.close()
        self._close_pipes()
        self._process = None


class _PipeReader(asyncio.Protocol):
    """Gives what comes out of a pipe to a function."""

    def __init__(self, receive: Callable[[bytes], None], ended: Callable[[], None]) -> None:
        self._receive, self._ended = receive, ended

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()


def _drain(pipe: int, receive: Callable[[bytes], None]) -> None:
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(pipe, 1 << 18):
            receive(chunk)
