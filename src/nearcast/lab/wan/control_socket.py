"""Requests to a running emulator: one JSON message each way over a local socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, TypedDict

import msgspec

from nearcast.errors import InputError, NearcastError
from nearcast.lab.wan.topology import LinkSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nearcast.lab.wan.forwarder import Forwarder

__all__ = ["LinkChange", "LinkFields", "LinkState", "ask_change", "ask_links", "serve"]

# A reply about the links of a thousand nodes is about 100 kB; a message is read whole.
MESSAGE_SIZE = 1 << 20
SECONDS_TO_ANSWER = 10.0


class LinkState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A link as it is now: its settings, and how many packets it sent, lost, and has on the way."""

    settings: LinkSettings
    sent: int = 0
    lost: int = 0
    waiting: int = 0


class LinkFields(TypedDict, total=False):
    """Some fields of `LinkSettings`."""

    delay_ms: float
    jitter_ms: float
    loss: float
    mbit: float | None
    cut: bool


class LinkChange(msgspec.Struct, frozen=True):
    """New values for some settings of the link from one node to another, by number."""

    source: int
    destination: int
    fields: LinkFields


class ControlRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Make all changes or none; then report the links of a node, if one is named."""

    changes: tuple[LinkChange, ...] = ()
    links_of: int | None = None


class ControlReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reason if the request was refused, or the links asked for."""

    refused: str | None = None
    links: tuple[LinkState, ...] = ()


def ask_change(path: Path, changes: Sequence[LinkChange]) -> None:
    """Change links of the emulator behind a socket."""
    _ask(path, ControlRequest(changes=tuple(changes)))


def ask_links(path: Path, node: int) -> tuple[LinkState, ...]:
    """The links from a node to every node, its own number included."""
    return _ask(path, ControlRequest(links_of=node)).links


def answer(forwarder: Forwarder, request: ControlRequest) -> ControlReply:
    """Execute a request."""
    links = forwarder.links
    try:
        changed = [
            msgspec.structs.replace(links[c.source][c.destination].settings, **c.fields) for c in request.changes
        ]
    except InputError as error:
        return ControlReply(refused=str(error))
    for change, settings in zip(request.changes, changed, strict=True):
        forwarder.change(change.source, change.destination, settings)
    if request.links_of is None:
        return ControlReply()
    row = links[request.links_of]
    return ControlReply(links=tuple(LinkState(link.settings, link.sent, link.lost, len(link.packets)) for link in row))


def serve(forwarder: Forwarder, path: Path) -> socket.socket:
    """Answer requests within the forwarder's loop. Returns the listening socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    listener.bind(str(path))
    listener.listen()
    decoder = msgspec.json.Decoder(ControlRequest)

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
                # The peer is gone or sent something else than a request: close the connection, keep forwarding.
                pass
            forwarder.forget(connection.fileno())
            connection.close()

        return read

    forwarder.watch(listener.fileno(), accept)
    return listener


def _ask(path: Path, request: ControlRequest) -> ControlReply:
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
    reply = msgspec.json.decode(message, type=ControlReply)
    if reply.refused is not None:
        raise InputError(reply.refused)
    return reply
