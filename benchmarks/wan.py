"""Speed and accuracy of the wide-area emulator, and where its time goes. Needs root.

.venv/bin/python -m benchmarks.wan
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil
from benchmarks.measure import Figure, print_table

from nearcast.lab.wan import Area, LinkSettings, from_rtts, round_trips, start, stop
from nearcast.lab.wan.delay_queue import DelayQueue, Link
from nearcast.lab.wan.namespaces import call_inside, create, delete, open_tun

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 9000
PAYLOAD = bytes(100)
FLOOD = float("inf")
SECONDS = 4.0
RTTS = {("a", "b"): 20.0, ("b", "c"): 50.0, ("a", "c"): 80.0}
TARGET = 20_000


def figures() -> Iterator[Figure]:
    """What one packet costs with and without a delay, then how exact the delay is as load grows."""
    bare_user, bare_system = bare_loop()
    bare = bare_user + bare_system
    name = f"b{secrets.token_hex(4)}"
    area, emulator = start(from_rtts(RTTS), name, leased=True)
    try:
        process = psutil.Process(emulator.pid)
        sent, user, system, rate = flooded(area, process)
        spent = user + system
        yield Figure("packets forwarded in a flood", f"{rate:,.0f}/s", target=f"{TARGET:,}/s")
        yield Figure(
            "packets per second of its processor time",
            f"{1e6 / spent:,.0f}",
            f"{1e6 / bare:,.0f} (read, write, nothing else)",
            bare / spent,
            f"{TARGET:,}",
        )
        yield Figure("processor time of a packet", f"{spent:.1f} µs over {sent:,} packets", f"{bare:.1f} µs")
        yield Figure("… in the kernel: a TUN read and a TUN write", f"{system:.1f} µs", f"{bare_system:.1f} µs")
        yield Figure("… in Python: the loop and the schedule", f"{user:.1f} µs", f"{bare_user:.1f} µs")
        yield Figure("the schedule alone: enter and leave", f"{schedule():.1f} µs")
        idle: float | None = None
        for load in (0, 5_000, 20_000, 40_000):
            errors, forwarded = errors_under_load(area, load)
            p50, p99 = statistics.median(errors), statistics.quantiles(errors, n=100)[98]
            idle = idle or p50
            yield Figure(
                f"RTT too long by, with {load:,} packets/s asked for, {forwarded:,.0f} forwarded",
                f"p50 {p50:.2f}, p99 {p99:.2f} ms",
                f"p50 {idle:.2f} ms without load",
                p50 / idle,
                "p50 1 ms or 3 %",
            )
    finally:
        stop(name, emulator)


def flood(namespace: str, address: str, rate: float, seconds: float) -> None:
    """Send datagrams from inside a namespace."""

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            out.connect((address, PORT))
            begin, number = time.perf_counter(), 0
            while (passed := time.perf_counter() - begin) < seconds:
                until = number + 64 if rate == FLOOD else passed * rate
                while number < until:
                    out.send(PAYLOAD)
                    number += 1
                if rate != FLOOD:
                    time.sleep(0.0005)

    call_inside(namespace, send)


@contextmanager
def flooding(namespace: str, address: str, rate: float) -> Iterator[None]:
    """A process that sends while the block runs."""
    sender = multiprocessing.get_context("spawn").Process(target=flood, args=(namespace, address, rate, 600.0))
    sender.start()
    try:
        yield
    finally:
        sender.kill()
        sender.join()


def sink() -> socket.socket:
    """Somewhere for the datagrams to arrive; without it each is answered by an error."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.bind(("0.0.0.0", PORT))
    return opened


def flooded(area: Area, process: psutil.Process) -> tuple[int, float, float, float]:
    """Packets forwarded, user and system time of each in µs, and packets per second, of a flood."""

    def state() -> tuple[float, int, float, float]:
        times = process.cpu_times()
        return time.perf_counter(), area.links("a")["b"].sent, times.user, times.system

    with call_inside(area.namespace("b"), sink), flooding(area.namespace("a"), area.address("b"), FLOOD):
        wait_for_traffic(area)
        before = state()
        time.sleep(SECONDS)
        seconds, sent, user, system = (new - old for new, old in zip(state(), before, strict=True))
    return int(sent), user / sent * 1e6, system / sent * 1e6, sent / seconds


def errors_under_load(area: Area, load: int) -> tuple[list[float], float]:
    """Measured minus set round trip in ms, across the busy link and beside it; packets forwarded per second."""
    pairs = [("a", "b"), ("c", "a")]
    with call_inside(area.namespace("b"), sink), flooding(area.namespace("a"), area.address("b"), load):
        if load:
            wait_for_traffic(area)
        begin, sent = time.perf_counter(), area.links("a")["b"].sent
        measured = round_trips(area, pairs, count=200, gap=0.01)
        rate = (area.links("a")["b"].sent - sent) / (time.perf_counter() - begin)
    return [rtt - (RTTS.get((a, b)) or RTTS[b, a]) for (a, b), times in measured.items() for rtt in times], rate


def wait_for_traffic(area: Area) -> None:
    before = area.links("a")["b"].sent
    while area.links("a")["b"].sent < before + 1000:
        time.sleep(0.01)


def bare_loop() -> tuple[float, float]:
    """User and system time in µs to read a packet from one TUN device and write it to another, no delay."""
    names = [f"nc-bare-{secrets.token_hex(4)}" for _ in range(2)]
    create(names)
    try:
        inlet, outlet = (open_tun(name, f"10.77.0.{n}/16") for n, name in enumerate(names, start=1))
        with call_inside(names[1], sink), flooding(names[0], "10.77.0.2", FLOOD):
            while not forward(inlet, outlet, 0.1):
                pass
            before = os.times()
            packets = forward(inlet, outlet, SECONDS / 2)
            after = os.times()
        os.close(inlet)
        os.close(outlet)
    finally:
        delete(names)
    return (after.user - before.user) / packets * 1e6, (after.system - before.system) / packets * 1e6


def forward(inlet: int, outlet: int, seconds: float) -> int:
    """Forward packets for some time; how many there were."""
    packets, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        try:
            for _ in range(1000):
                os.write(outlet, os.read(inlet, 2048))
                packets += 1
        except BlockingIOError:
            # Let many gather, so that what is measured is reading and writing, not waking up.
            time.sleep(0.005)
    return packets


def schedule(packets: int = 100_000) -> float:
    """Processor time in µs for a packet to enter and to leave, in batches as they come under load."""
    delay_queue, link, packet = DelayQueue(), Link(LinkSettings(10.0), exit=0), bytes(128)
    begin = time.process_time()
    for number in range(packets):
        now = number / 50_000
        delay_queue.enter(link, now, packet)
        if number % 32 == 0:
            delay_queue.leave(now, 64)
    return (time.process_time() - begin) / packets * 1e6


if __name__ == "__main__":
    print_table("wide-area emulator", figures())
