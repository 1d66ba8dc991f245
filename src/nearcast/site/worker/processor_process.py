"""Feeds one runner process: tickets out, outcomes in, and a new runner when the old one dies or hangs.

What is in the runner's hands is known at every moment: outcomes come back in the order tickets went out, so the
first ticket without an outcome is the message in hand. When the runner dies, that one is given up and the others are
handed to its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import subprocess
import sys
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nearcast.processors import ProcessorError, ProcessorSpec
from nearcast.site.supervisor import die_with_parent
from nearcast.site.worker.processor_main import ANNOUNCE, DONE, LENGTH, OUTCOME, READY, TICKET, Announcement, Setup

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ProcessorProcess", "Ticket"]

_log = logging.getLogger(__name__)
_START_LIMIT = 60.0
_LOOK_EVERY = 0.05
# Outcomes of 4 KiB would fill the usual 64 KiB after sixteen, and the two processes would wait for each other.
_PIPE_BYTES = 1 << 20
_LAST_WORDS = 4096


@dataclass(frozen=True, slots=True)
class Ticket:
    """One message for the runner: its topic's number, its own number in the spool, and how long it may take.

    position: how many messages the worker had put into spools, all told, when this one was. arrived: when it came, by
    the monotonic clock.
    """

    topic: int
    number: int
    timeout: float
    position: int
    arrived: float = 0.0


class ProcessorProcess:
    """Runs tickets one at a time, in order.

    done:   called with a ticket and its notifications.
    failed: called with a ticket and the reason, once for each that was given up.
    """

    def __init__(
        self,
        setup: Setup,
        done: Callable[[Ticket, list[bytes]], None],
        failed: Callable[[Ticket, str], None],
    ) -> None:
        self._setup, self._done, self._failed = setup, done, failed
        self.announced: dict[int, Announcement] = {}
        self.outstanding: deque[Ticket] = deque()
        self.busy: defaultdict[int, float] = defaultdict(float)  # seconds of processing, by topic number
        self._unsent = bytearray()
        self._received = bytearray()
        self._since = 0.0  # when the message in hand was taken up
        self._ready = False
        self._verdict = ""
        self._words = b""  # the end of what the runner said on its standard error
        self._process: subprocess.Popen[bytes] | None = None
        self._tickets = self._outcomes = -1
        self._ended = asyncio.Event()
        self._flush_planned = False
        self.restarts = 0
        self.processors: list[ProcessorSpec] = []

    @property
    def pid(self) -> int | None:
        """The runner's process id."""
        return self._process.pid if self._process else None

    def announce(self, announcement: Announcement) -> None:
        """Make a topic known to this runner and its successors."""
        self.announced[announcement.number] = announcement
        self._write(_announcement(announcement))

    def retire(self, number: int) -> None:
        """Have this runner let go of a topic, and tell its successors nothing of it."""
        self.announced.pop(number, None)
        self.busy.pop(number, None)
        self._write(_announcement(Announcement(number, "", "", "")))

    def submit(self, ticket: Ticket) -> None:
        """Hand a message to the runner."""
        if not self.outstanding:
            self._since = asyncio.get_running_loop().time()
        self.outstanding.append(ticket)
        self._write(TICKET.pack(ticket.topic, ticket.number))

    async def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Keep a runner going until cancelled. Raises ProcessorError when the user's modules cannot be loaded."""
        try:
            while True:
                self._launch()
                await self._until_it_ends(started)
                if not self._ready:
                    raise ProcessorError(self._verdict or "the processors could not be loaded")
                self._give_up_message_in_hand()
                self.restarts += 1
        finally:
            self._stop()

    def _launch(self) -> None:
        ticket_reader, self._tickets = os.pipe()
        self._outcomes, outcome_writer = os.pipe()
        for pipe in (self._tickets, self._outcomes):
            with contextlib.suppress(OSError):  # more than an unprivileged process may have: the default must do
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nearcast.site.worker.processor_main", msgspec.json.encode(self._setup).decode(),
                 str(ticket_reader), str(outcome_writer)],
                pass_fds=(ticket_reader, outcome_writer),
                stderr=subprocess.PIPE,
                preexec_fn=die_with_parent,
            )  # fmt: skip
        finally:
            os.close(ticket_reader)
            os.close(outcome_writer)
        assert self._process.stderr is not None
        for pipe in (self._tickets, self._outcomes, self._process.stderr.fileno()):
            os.set_blocking(pipe, False)
        self._ready, self._verdict, self._words = False, "", b""
        self._received.clear()
        self._ended.clear()
        self._unsent = bytearray(b"".join(map(_announcement, self.announced.values())))
        for ticket in self.outstanding:
            self._unsent += TICKET.pack(ticket.topic, ticket.number)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._outcomes, self._read)
        loop.add_reader(self._process.stderr.fileno(), self._hear)
        self._flush()

    async def _until_it_ends(self, started: Callable[[], None]) -> None:
        """Look now and then whether the message in hand has had its time."""
        clock = asyncio.get_running_loop().time
        launched, told = clock(), False
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._ended.wait()
            if self._process is not None and self._process.poll() is not None:
                # A process that user code forked may hold the pipe open for ever: what is in it is all there is.
                while self._read():
                    pass
                self._ended.set()
            if self._ready and not told:
                told = True
                started()
            if not self._ready:
                if clock() - launched > _START_LIMIT:
                    self._kill(f"the processors were not loaded within {_START_LIMIT:g} s")
            elif self.outstanding and clock() - self._since > self.outstanding[0].timeout:
                self._kill(f"took longer than {self.outstanding[0].timeout:g} s")
        self._collect()

    def _kill(self, verdict: str) -> None:
        if not self._verdict and self._process is not None:
            self._verdict = verdict
            self._process.kill()

    def _collect(self) -> None:
        """The runner has ended: take its last words and its exit code."""
        process = self._process
        assert process is not None
        code = process.wait()
        while self._hear():
            pass
        words = self._words.decode(errors="replace").strip()
        self._close_pipes()
        if not self._verdict:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
            last = words.splitlines()[-1] if words else ""
            self._verdict = last if not self._ready and last else f"the processor's process {how}"
        _log.warning("runner %d: %s", process.pid, self._verdict)
        self._process = None

    def _hear(self) -> bool:
        """Pass on what user code writes to standard error; a pipe nobody reads would fill up and stop it."""
        pipe = self._process.stderr if self._process is not None else None
        if pipe is None or pipe.closed:
            return False
        try:
            chunk = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            return False
        self._words = (self._words + chunk)[-_LAST_WORDS:]
        print(chunk.decode(errors="replace"), end="", file=sys.stderr, flush=True)
        return True

    def _give_up_message_in_hand(self) -> None:
        if self.outstanding:
            self._failed(self.outstanding.popleft(), self._verdict)

    def _write(self, frame: bytes) -> None:
        self._unsent += frame
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Write what fits into the pipe; the rest when the runner has read some."""
        self._flush_planned = False
        loop = asyncio.get_running_loop()
        if self._tickets < 0 or not self._unsent:
            return
        try:
            written = os.write(self._tickets, self._unsent)
            del self._unsent[:written]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return  # its end is noticed on the other pipe
        if self._unsent:
            self._flush_planned = True
            loop.add_writer(self._tickets, self._resume)

    def _resume(self) -> None:
        asyncio.get_running_loop().remove_writer(self._tickets)
        self._flush()

    def _read(self) -> bool:
        """Take outcomes; whether there were any."""
        try:
            chunk = os.read(self._outcomes, 1 << 18)
        except BlockingIOError:
            return False
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._outcomes)
            self._ended.set()
            return False
        received = self._received
        received += chunk
        at, end = 0, len(received)
        while end - at >= OUTCOME.size:
            kind, topic, number, length = OUTCOME.unpack_from(received, at)
            if end - at < OUTCOME.size + length:
                break
            body = bytes(received[at + OUTCOME.size : at + OUTCOME.size + length])
            at += OUTCOME.size + length
            now = asyncio.get_running_loop().time()
            taken, self._since = now - self._since, now
            if kind == READY:
                self._ready = True
                self.processors = msgspec.json.decode(body, type=list[ProcessorSpec])
                continue
            ticket = self.outstanding.popleft()
            assert (ticket.topic, ticket.number) == (topic, number)
            self.busy[topic] += taken
            if kind == DONE:
                self._done(ticket, _notifications(body))
            else:
                self._failed(ticket, body.decode(errors="replace"))
        del received[:at]
        return True

    def _close_pipes(self) -> None:
        loop = asyncio.get_running_loop()
        if self._tickets >= 0:
            loop.remove_writer(self._tickets)
            os.close(self._tickets)
        if self._outcomes >= 0:
            loop.remove_reader(self._outcomes)
            os.close(self._outcomes)
        self._tickets = self._outcomes = -1
        self._flush_planned = False
        if self._process is not None and self._process.stderr is not None:
            loop.remove_reader(self._process.stderr.fileno())
            self._process.stderr.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close_pipes()
        self._process = None


def _announcement(announcement: Announcement) -> bytes:
    body = msgspec.json.encode(announcement)
    return TICKET.pack(ANNOUNCE, len(body)) + body


def _notifications(body: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(body):
        (length,) = LENGTH.unpack_from(body, at)
        found.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return found
