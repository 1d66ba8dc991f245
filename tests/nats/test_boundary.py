"""The boundary: whatever arrives becomes a struct within its ranges, or is counted and dropped."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.nats.boundary import DroppedMessages, MalformedError, Receiver, decode
from nearcast.protocol.control import StartTopic, StopTopic
from nearcast.protocol.marks import Marks
from nearcast.protocol.registration import RegisterSite, SiteInfo
from nearcast.protocol.reports import ClientReport


@given(st.binary(max_size=200), st.sampled_from([StopTopic, ClientReport, Marks, RegisterSite]))
def test_random_bytes_raise_nothing_else(payload: bytes, kind: Any) -> None:
    for encoding in ("json", "msgpack"):
        with contextlib.suppress(MalformedError):
            decode(payload, kind, encoding)  # type: ignore[arg-type]


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'"\xff"', b"\xdd\xff\xff\xff\xff", b""])
def test_nesting_text_and_lengths_are_malformed(payload: bytes) -> None:
    for encoding in ("json", "msgpack"):
        with pytest.raises(MalformedError):
            decode(payload, RegisterSite, encoding)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (StopTopic, {"term": 1 << 62, "epoch": 1, "topic": "gps", "worker": "worker-0"}),
        (StopTopic, {"term": 1, "epoch": -1, "topic": "gps", "worker": "worker-0"}),
        (StopTopic, {"term": 1, "epoch": 1, "topic": "gps..x", "worker": "worker-0"}),
        (StopTopic, {"term": 1, "epoch": 1, "topic": "g" * 300, "worker": "worker-0"}),
        (StartTopic, {"term": 1, "epoch": 1, "spec": {"name": "gps"}, "worker": "../../tmp/x"}),
        (StartTopic, {"term": 1, "epoch": 1, "spec": {"name": "gps"}, "worker": "worker-0\n"}),
        (StartTopic, {"term": 1, "epoch": 1, "spec": {"name": "../gps"}, "worker": "worker-0"}),
        (StartTopic, {"term": 1, "epoch": 1, "spec": {"name": "gps"}, "worker": "a", "source": ["../x", "b"]}),
        (SiteInfo, {"name": "a.b", "url": "nats://x:1", "host": "x", "port": 1}),
        (SiteInfo, {"name": "a", "url": "nats://x:1", "host": "x", "port": 70_000}),
        (ClientReport, {"client": "x", "seconds": 1.0, "topics": [["gps", True, True, 1, 1, 1, 1, {100_000: 1}]]}),
        (Marks, [1, "a/worker-0", {"gps": [{"car~1": [1]}]}]),
        (Marks, [1, "a/worker-0", {"gps": [{"car~1": [7, 3]}]}]),
    ],
)
def test_what_is_out_of_range_is_malformed(kind: Any, body: Any) -> None:
    with pytest.raises(MalformedError):
        decode(msgspec.msgpack.encode(body), kind, "msgpack")


def test_what_is_dropped_is_counted_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    dropped = DroppedMessages(lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            dropped.note("report", "mon.client.a", "x" * 5000)
        now = 11.0
        dropped.note("report", "mon.client.a", "no")
    assert dropped.counts["report"] == 1001
    assert len(caplog.messages) == 2
    assert "(1000 since the last such line)" in caplog.messages[1]
    assert len(caplog.messages[0]) < 300


def test_a_receiver_gives_on_only_what_is_whole() -> None:
    got: list[StopTopic] = []
    receiver = Receiver("command", StopTopic, "json", lambda subject, reply, value: got.append(value))
    stop = StopTopic(1, 1, "gps", "worker-0")
    for payload in (b"", b"{}", msgspec.json.encode(stop), b"\xff"):
        receiver("ctl", "", payload, b"")
    assert got == [stop]
