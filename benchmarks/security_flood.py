"""One device floods: what do the others notice? `python -m benchmarks.security_flood`.

A site, a device that publishes 300 messages a second to a subscriber, and beside them a process that sends as fast as
it can whenever it is connected: a user with a limit, another one in each round, and one without. In turns, in one run.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import uvloop
from benchmarks.measure import Figure, print_table

import nearcast
from nearcast.auth.auth_folder import AuthFolder
from nearcast.auth.roles import Grants
from nearcast.message import Message
from nearcast.nats.connection import open_connection
from nearcast.nats.identity.credentials import read_credentials
from nearcast.nats.identity.tokens import UNLIMITED, AccessLimits
from nearcast.testing import RunningSites, sites

_ROUNDS, _SECONDS, _RATE = 10, 5, 300
_LIMITED = AccessLimits(messages_per_second=100, bytes_per_second=100_000)


async def probe(url: str, credentials: str) -> None:
    """Print the percentiles of the time from publication to receipt, in milliseconds."""
    times: list[float] = []

    def note(message: Message) -> None:
        times.append(1000 * (time.perf_counter() - float(message.payload)))

    async with nearcast.connect(url, credentials=credentials) as client, client.subscribe("probe", callback=note):
        loop, start = asyncio.get_running_loop(), time.perf_counter()
        for n in range(_SECONDS * _RATE):
            await asyncio.sleep(max(0.0, start + n / _RATE - time.perf_counter()))
            await client.publish("probe", (b"%.9f" % time.perf_counter()).ljust(128))
        deadline = loop.time() + 10
        while len(times) < _SECONDS * _RATE and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    cuts = statistics.quantiles(times, n=100)
    print(json.dumps({"p50": cuts[49], "p99": cuts[98], "lost": _SECONDS * _RATE - len(times)}))


async def flood(url: str, credentials: str) -> None:
    """Send as fast as possible, and again when the connection is back, which is tried five times a second."""
    os.nice(19)  # it stands for another machine: what it computes itself is not to slow the others
    connection = await open_connection([url], name="flood", credentials=read_credentials(credentials))
    while True:
        if not connection.is_connected:
            await asyncio.sleep(0.01)
            continue
        for _ in range(1000):
            connection.send("pub.noise", b"", bytes(128))
        await connection.wait_writable()


async def p99(running: RunningSites, flooder: str = "") -> dict[str, float]:
    """What the others see, while a user floods or while nobody does."""
    url, auth = running.url("edge"), running.auth
    assert auth is not None
    beside = [_process("flood", url, auth, flooder)] if flooder else []
    try:
        probing = _process("probe", url, auth, "prober")
        output, _ = await asyncio.to_thread(probing.communicate)
        return dict(json.loads(output))
    finally:
        for process in beside:
            process.kill()
            process.wait()


def _process(what: str, url: str, auth: AuthFolder, user: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __spec__.name, what, url, str(auth.credentials_file(user, "main"))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[1])


async def main() -> None:
    """Measure and print."""
    found: dict[str, list[dict[str, float]]] = {"nobody floods": [], "a user with a limit": [], "one without": []}
    async with sites(names=("edge",), secured=True) as running:
        auth = running.auth
        assert auth is not None
        auth.add_user("device", "prober", grants=Grants(("probe",), ("probe",)))
        for n in range(_ROUNDS):
            for name, limits in zip(found, (None, _LIMITED, UNLIMITED), strict=True):
                user = ""
                if limits is not None:
                    user = f"flood{n}-{'limited' if limits is _LIMITED else 'open'}"
                    auth.add_user("device", user, grants=Grants(("noise",)), limits=limits)
                found[name].append(await p99(running, user))
        enforcer = running.sites["edge"].limits
        closed = enforcer.closed("main") if enforcer is not None else {}
    calm = found["nobody floods"]
    figures = []
    for name, target in (("a user with a limit", "≤ 1.2"), ("one without", "")):
        for key in ("p50", "p99"):
            ratio = statistics.median(one[key] / base[key] for one, base in zip(found[name], calm, strict=True))
            flooded, quiet = (f"{statistics.median(one[key] for one in runs):.2f} ms" for runs in (found[name], calm))
            figures.append(Figure(f"{name}, {key} of others", flooded, quiet, ratio, target if key == "p99" else ""))
    lost = {name: sum(int(one["lost"]) for one in runs) for name, runs in found.items()}
    figures.append(Figure("lost of the others", str(lost["a user with a limit"]), str(lost["nobody floods"])))
    print_table(f"{_ROUNDS} rounds of {_SECONDS} s; users closed: {len(closed)}", figures)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["probe", url, credentials]:
            uvloop.run(probe(url, credentials))
        case ["flood", url, credentials]:
            uvloop.run(flood(url, credentials))
        case _:
            uvloop.run(main())
