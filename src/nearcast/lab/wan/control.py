"""What is said to a running emulator: one message each way over a local socket, JSON."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, TypedDict

import msgspec

from nearcast.errors import InputError, NearcastError
from nearcast.lab.wan.topology import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nearcast.lab.wan.forwarder import Forwarder

__all__ = ["Change", "Fields", "LinkState", "ask_change", "ask_links", "serve"]

# A reply about the links of a thousand nodes is about 100 kB; a message is read whole.
MESSAGE_SIZE = 1 << 20
SECONDS_TO_ANSWER = 10.0


class LinkState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A link as it is now: its settings, and how many packets it sent, lost, and has on the way."""

    way: Way
    sent: int = 0
    lost: int = 0
    waiting: int = 0


class Fields(TypedDict, total=False):
    """Some fields of `Way`."""

    delay_ms: float
    jitter_ms: float
    loss: float
    mbit: float | None
    cut: bool


class Change(msgspec.Struct, frozen=True):
    """New values for some fields of the way from one node to another, by number."""

    source: int
    destination: int
    fields: Fields


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """Make all changes or none; then tell about the links of a node, if one is named."""

    changes: tuple[Change, ...] = ()
    links_of: int | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of a request: a reason if it was refused, or the links asked for."""

    refused: str | None = None
    links: tuple[LinkState, ...] = ()


def ask_change(path: Path, changes: Sequence[Change]) -> None:
    """Change links of the emulator behind a socket."""
    _ask(path, Request(changes=tuple(changes)))


def ask_links(path: Path, node: int) -> tuple[LinkState, ...]:
    """The links from a node to every node, its own number included."""
    return _ask(path, Request(links_of=node)).links


def answer(forwarder: Forwarder, request: Request) -> Reply:
    """Do what a request says."""
    links = forwarder.links
    try:
        ways = [msgspec.structs.replace(links[c.source][c.destination].way, **c.fields) for c in request.changes]
    except InputError as error:
        return Reply(refused=str(error))
    for change, way in zip(request.changes, ways, strict=True):
        forwarder.change(change.source, change.destination, way)
    if request.links_of is None:
        return Reply()
    row = links[request.links_of]
    return Reply(links=tuple(LinkState(link.way, link.sent, link.lost, len(link.packets)) for link in row))


def serve(forwarder: Forwarder, path: Path) -> socket.socket:
    """Answer requests within the forwarder's loop. Returns the listening socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    listener.listen()
    decoder = msgspec.json.Decoder(Request)

    def accept() -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        forwarder.watch(connection.fileno(), read_from(connection))

    def read_from(connection: socket.socket) -> Callable[[], None]:
        def read() -> None:
            try:
                message = connection.recv(MESSAGE_SIZE)
                if message:
                    connection.send(msgspec.json.encode(answer(forwarder, decoder.decode(message))))
                    return
            except (OSError, msgspec.DecodeError, IndexError, TypeError):
                # The other end is gone, or does not speak our language: let it go, keep forwarding.
                pass
            forwarder.forget(connection.fileno())
            connection.close()

        return read

    forwarder.watch(listener.fileno(), accept)
    return listener


def _ask(path: Path, request: Request) -> Reply:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(SECONDS_TO_ANSWER)
        try:
            connection.connect(str(path))
            connection.send(msgspec.json.encode(request))
            message = connection.recv(MESSAGE_SIZE)
        except OSError as error:
            raise NearcastError(f"the emulator behind {path} does not answer: {error}") from None
    if not message:
        raise NearcastError(f"the emulator behind {path} did not understand the request")
    reply = msgspec.json.decode(message, type=Reply)
    if reply.refused is not None:
        raise InputError(reply.refused)
    return reply
