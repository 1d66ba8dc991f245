"""Publications that wait for stores, without a network."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.client import acknowledgements as module
from nearcast.client.acknowledgements import Acknowledgements, QuorumError, QuorumPublication
from nearcast.nats.connection import Connection, ConnectionLostError
from nearcast.nats.refusals import RefusedError, RefusedSubjects


class Silent:
    """A connection to stores that never answer."""

    is_connected = True
    backlogged = False

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe_raw(self, subject: str, sink: object) -> None:
        pass

    def __init__(self) -> None:
        self.refusals = RefusedSubjects("nobody")
        self.sent: list[tuple[str, bytes]] = []

    def send(self, subject: str, headers: bytes, payload: bytes, reply: str) -> None:
        self.sent.append((reply, payload))

    def forget_unsent(self, inbox: str) -> None:
        pass


async def test_who_waits_for_a_place_does_not_wait_for_ever_when_the_client_closes(monkeypatch) -> None:
    monkeypatch.setattr(module, "_IN_FLIGHT", 1)
    acknowledgements = Acknowledgements(Silent())  # type: ignore[arg-type]
    await acknowledgements.start()
    first = await acknowledgements.send(QuorumPublication("a:b:1:1", "gps", "pub.gps", 1, b"{}"), 30.0)

    async def send_another() -> None:
        await acknowledgements.wait_for_room()
        await acknowledgements.send(QuorumPublication("a:b:1:2", "gps", "pub.gps", 1, b"{}"), 30.0)

    second = asyncio.create_task(send_another())
    await asyncio.sleep(0)
    await acknowledgements.stop()
    with pytest.raises(QuorumError):
        await first
    with pytest.raises(ConnectionLostError):
        async with asyncio.timeout(5):
            await second


async def test_what_was_under_way_when_the_connection_was_lost_is_sent_again_before_anything_newer() -> None:
    """It was sent again a second later, behind newer ones that subscribers had got meanwhile (chaos, seed 4)."""
    connection = Silent()
    acknowledgements = Acknowledgements(connection)  # type: ignore[arg-type]
    await acknowledgements.start()
    for number in (1, 2):
        await acknowledgements.send(QuorumPublication(f"a:b:1:{number}", "log", "pub.log", 1, b"%d" % number), 30.0)
    acknowledgements.disconnected()
    await acknowledgements.send(QuorumPublication("a:b:1:3", "log", "pub.log", 1, b"3"), 30.0)
    assert [payload for _, payload in connection.sent] == [b"1", b"2"]
    connection.sent.clear()
    acknowledgements.reconnected()
    await acknowledgements.send(QuorumPublication("a:b:1:4", "log", "pub.log", 1, b"4"), 30.0)
    assert [payload for _, payload in connection.sent] == [b"1", b"2", b"3", b"4"]
    await acknowledgements.stop()


async def test_what_a_hung_broker_did_not_take_is_not_sent_before_the_rest_is_sent_again_in_order() -> None:
    """The buffer of the lost connection was sent first, in the order of the last attempts (chaos, seed 3)."""
    connection = Connection()  # never opened: nothing is taken from it
    acknowledgements = Acknowledgements(connection)
    for number in (2, 1, 3):
        await acknowledgements.send(QuorumPublication(f"a:b:1:{number}", "log", "pub.log", 1, b"%d" % number), 30.0)
    connection.send("pub.plain", b"", b"plain")
    acknowledgements.disconnected()
    assert connection._pending == [b"PUB pub.plain  5\r\nplain\r\n"]
    assert connection.pending_data_size == len(connection._pending[0])


async def test_what_could_not_be_sent_is_not_sent_later() -> None:
    """Its publisher was told, and may have published it again."""

    class Full(Silent):
        def send(self, subject: str, headers: bytes, payload: bytes, reply: str) -> None:
            raise ConnectionLostError("no broker answers, and 8388608 bytes already wait for one")

    connection = Full()
    acknowledgements = Acknowledgements(connection)  # type: ignore[arg-type]
    with pytest.raises(ConnectionLostError):
        await acknowledgements.send(QuorumPublication("a:b:1:1", "gps", "pub.gps", 1, b"{}"), 30.0)
    connection.send = lambda *message: connection.sent.append(message)  # type: ignore[method-assign, assignment]
    acknowledgements.reconnected()
    assert connection.sent == []
    await asyncio.wait_for(acknowledgements.drain(), 5)


async def test_a_publication_that_the_broker_refuses_fails_at_once_and_is_not_sent_again() -> None:
    connection, failed = Silent(), []
    connection.refusals = RefusedSubjects("car")
    acknowledgements = Acknowledgements(connection, lambda *one: failed.append(one))  # type: ignore[arg-type]
    await acknowledgements.start()
    refused = await acknowledgements.send(QuorumPublication("a:b:1:1", "Gps", "pub.Gps", 1, b"{}"), 30.0)
    other = await acknowledgements.send(QuorumPublication("a:b:1:1", "log", "pub.log", 1, b"{}"), 30.0)
    connection.refusals.note('permissions violation for publish to "pub.gps"')  # nats-py gives it in small letters
    with pytest.raises(RefusedError, match="topic Gps: car may not publish it"):
        await asyncio.wait_for(refused, 5)
    assert failed == [("pub.Gps", "a:b:1:1")], "workers are not to wait for its number"
    acknowledgements.reconnected()
    assert [subject for subject, _ in connection.sent] == ["_INBOX.x.1", "_INBOX.x.2", "_INBOX.x.2"]
    assert not other.done()
    await acknowledgements.stop()


async def test_the_error_names_the_stores_that_did_not_acknowledge() -> None:
    acknowledgements = Acknowledgements(Silent())  # type: ignore[arg-type]
    await acknowledgements.start()
    publication = QuorumPublication("a:b:1:1", "log", "pub.log", 2, b"{}")
    waiting = await acknowledgements.send(publication, 30.0, replicas=("tokyo", "osaka", "cloud"))
    acknowledgements._arrived("_INBOX.x.1", "", b'{"stream": "log", "domain": "osaka", "seq": 1}', b"")
    await acknowledgements.stop()
    with pytest.raises(
        QuorumError, match=r"1 of 2 stores acknowledged in time \(osaka\); missing: tokyo, cloud"
    ) as caught:
        await waiting
    assert caught.value.answered == ("osaka",)
    assert caught.value.missing == ("tokyo", "cloud")
