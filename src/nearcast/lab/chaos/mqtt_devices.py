"""Devices that speak MQTT and know nothing of Nearcast, in a process of their own.

    python -m nearcast.lab.chaos.mqtt_devices

Jobs and words are those of `clients`. QoS 1: the broker's PUBACK is noted as the receipt, up to a period late.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from pathlib import Path

import msgspec
import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from nearcast.lab.chaos.clients import STOPPED
from nearcast.lab.chaos.ledger import LedgerFile
from nearcast.lab.scenarios.processes import READY

__all__ = ["DevicesJob"]

_CONNECT_LIMIT = 60.0
_RECEIPT_LIMIT = 10.0


class DevicesJob(msgspec.Struct, frozen=True):
    """Devices of one node: their names, their site and its broker, how often each publishes, the ledger's folder."""

    node: str
    names: list[str]
    site: str
    host: str
    port: int
    rate: float
    folder: str


class MqttDevice:
    """One device."""

    def __init__(self, name: str, job: DevicesJob, ledger: LedgerFile) -> None:
        self._site = job.site
        self._name, self._topic, self._ledger = f"{name}.{os.getpid()}", f"meter.{name}", ledger
        self._unacknowledged: dict[int, int] = {}  # numbers of publications, by MQTT's message number
        self._acknowledged: deque[int] = deque()  # filled by a thread of the library
        ledger.note("client", name=self._name, node=job.node)
        self._client = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=name, clean_session=False, protocol=mqtt.MQTTv311
        )
        self._client.on_publish = lambda client, data, number, code, properties: self._acknowledged.append(number)
        self._client.reconnect_delay_set(1, 4)
        self._client.connect_async(job.host, job.port, keepalive=5)
        self._client.loop_start()

    def is_connected(self) -> bool:
        """Whether the broker has taken it."""
        return self._client.is_connected()

    def publish(self, n: int) -> None:
        """Publish; while the broker is away the library keeps it."""
        self._ledger.note(
            "published", publisher=self._name, n=n, topic=self._topic, count=1, home=self._site, path=self._site
        )
        body = msgspec.json.encode({"publisher": self._name, "n": n, "count": 1})
        sent = self._client.publish("pub/" + self._topic.replace(".", "/"), body, qos=1)
        self._unacknowledged[sent.mid] = n

    def note_receipts(self) -> None:
        """Note which publications the broker has acknowledged since."""
        while self._acknowledged:
            n = self._unacknowledged.pop(self._acknowledged.popleft())
            self._ledger.note("receipt", publisher=self._name, n=n, id="", stores=[])

    def finish(self, deadline: float) -> None:
        """Wait for the last receipts."""
        while self._unacknowledged and time.monotonic() < deadline:
            time.sleep(0.1)
            self.note_receipts()

    def end(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


def main() -> None:
    """Do the job of standard input."""
    job = msgspec.json.decode(sys.stdin.readline(), type=DevicesJob)
    ledger = LedgerFile(Path(job.folder) / f"devices-{job.node}-{os.getpid()}.jsonl")
    devices = [MqttDevice(name, job, ledger) for name in job.names]
    deadline = time.monotonic() + _CONNECT_LIMIT
    while not all(device.is_connected() for device in devices) and time.monotonic() < deadline:
        time.sleep(0.1)
    print(READY, flush=True)
    stopped = threading.Event()

    def wait_for_stop() -> None:
        sys.stdin.readline()
        stopped.set()

    threading.Thread(target=wait_for_stop, daemon=True).start()
    n = 0
    while not stopped.wait(1 / job.rate):
        n += 1
        for device in devices:
            device.publish(n)
            device.note_receipts()
    for device in devices:
        device.finish(time.monotonic() + _RECEIPT_LIMIT)
    print(STOPPED, flush=True)
    sys.stdin.readline()
    for device in devices:
        device.end()
    ledger.close()


if __name__ == "__main__":
    main()
