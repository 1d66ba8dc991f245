"""Wide areas that are really up: accuracy, load, several at once, and nothing left behind."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nearcast import InputError
from nearcast.cli import main
from nearcast.lab.wan import (
    Area,
    LinkSettings,
    call_at,
    clear_leftovers,
    from_links,
    from_rtts,
    missing_right,
    process_at,
    round_trips,
    running,
    start,
    stop,
    wide_area,
)
from nearcast.lab.wan import testing as wan_testing
from nearcast.lab.wan.lifecycle import emulator_process
from nearcast.lab.wan.namespaces import call_inside, names
from nearcast.testing import until

if TYPE_CHECKING:
    pass

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),  # a start clears what killed emulators left, of any test
]

PORT = 9000
# Root may have a receive buffer that holds all a test sends.
SO_RCVBUFFORCE = 33
THREE = from_rtts({("a", "b"): 20.0, ("b", "c"): 50.0, ("a", "c"): 200.0})
NEARCAST = str(Path(sys.executable).with_name("nearcast"))

# Sends numbered datagrams at a steady rate: node address, packets per second, seconds.
LOAD = f"""
import socket, sys, time
rate, seconds = float(sys.argv[2]), float(sys.argv[3])
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.connect((sys.argv[1], {PORT}))
start, number = time.perf_counter(), 0
while (passed := time.perf_counter() - start) < seconds:
    while number < passed * rate:
        out.send(number.to_bytes(4) + bytes(100))
        number += 1
    time.sleep(0.001)
print(number)
"""


def new_name() -> str:
    return f"t{secrets.token_hex(4)}"


def namespaces_of(name: str) -> set[str]:
    return {each for each in names() if each.startswith(f"nc-{name}-")}


def open_datagrams(area: Area, node: str) -> socket.socket:
    def open_() -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        opened.bind(("0.0.0.0", PORT))
        opened.settimeout(5)
        return opened

    return call_inside(area.namespace(node), open_)


def read_numbers(receiver: socket.socket) -> list[int]:
    """What has arrived."""
    receiver.setblocking(False)
    numbers = []
    try:
        while True:
            numbers.append(int.from_bytes(receiver.recv(200)[:4]))
    except BlockingIOError:
        return numbers


def close_enough(measured: float, rtt: float) -> bool:
    """The accuracy promised: 1 ms or 3 %, and never early. Of the least of some: other work only makes them longer."""
    return 0.0 <= measured - rtt <= max(1.0, 0.03 * rtt)


async def test_round_trips_are_as_set_and_change_when_set() -> None:
    async with wide_area(THREE) as area:
        pairs = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "a")]
        measured = await asyncio.to_thread(round_trips, area, pairs, count=20)
        for (a, b), times in measured.items():
            rtt = THREE.link(a, b).delay_ms + THREE.link(b, a).delay_ms
            assert len(times) == 20
            assert close_enough(min(times), rtt), (a, b, times)
        area.set("a", "all", delay_ms=30.0)
        (times,) = (await asyncio.to_thread(round_trips, area, [("c", "a")])).values()
        assert close_enough(min(times), 60.0)
        area.cut("a", "b")
        measured = await asyncio.to_thread(round_trips, area, [("a", "b"), ("b", "a"), ("a", "c"), ("c", "b")])
        assert [len(times) for times in measured.values()] == [0, 0, 5, 5]


async def test_round_trips_are_as_set_under_load_and_a_flow_stays_in_order() -> None:
    async with wide_area(THREE) as area:
        load = [sys.executable, "-c", LOAD, area.address("b"), "5000", "2"]
        with open_datagrams(area, "b") as receiver:
            async with process_at(area, "a", *load, output=subprocess.PIPE) as loading:
                # Wait for the load to flow.
                await asyncio.to_thread(receiver.recv, 200)
                measured = await asyncio.to_thread(round_trips, area, [("a", "b"), ("c", "a")], count=40, gap=0.02)
                sent = int((await loading.communicate())[0])
            await until(lambda: area.links("a")["b"].waiting == 0)
            numbers = read_numbers(receiver)
        assert close_enough(min(measured["a", "b"]), 20.0)
        assert close_enough(min(measured["c", "a"]), 200.0)
        assert numbers == list(range(1, sent))


async def test_loss_jitter_and_bandwidth_apply_and_order_is_kept() -> None:
    topology = from_links({("a", "b"): LinkSettings(20.0, jitter_ms=10.0, loss=0.1, mbit=20.0)})
    async with wide_area(topology, seed=3) as area:
        load = [sys.executable, "-c", LOAD, area.address("b"), "2000", "1"]
        with open_datagrams(area, "b") as receiver:
            async with process_at(area, "a", *load, output=subprocess.PIPE) as loading:
                sent = int((await loading.communicate())[0])
            await until(lambda: area.links("a")["b"].waiting == 0)
            numbers = read_numbers(receiver)
        assert numbers == sorted(numbers)
        assert len(numbers) / sent == pytest.approx(0.9, abs=0.04)
        # 2000 packets/s of 132 bytes are 2.1 Mbit/s: a tenth of what is allowed, ten times of what is now.
        area.set("a", "b", mbit=0.2, loss=0.0)
        with open_datagrams(area, "b") as receiver:
            async with process_at(area, "a", *load, output=subprocess.PIPE) as loading:
                sent = int((await loading.communicate())[0])
            await until(lambda: area.links("a")["b"].waiting == 0)
            bits = 8 * 132 * len(read_numbers(receiver))
        # What fits in the second of sending and in the buffer.
        assert bits == pytest.approx(0.2e6 * 1.1, rel=0.15)


async def test_two_areas_do_not_meet() -> None:
    async with wide_area(THREE) as one, wide_area(from_rtts({("a", "b"): 60.0})) as other:
        assert one.address("b") == other.address("b")
        with open_datagrams(one, "b") as in_one, open_datagrams(other, "b") as in_other:
            for area in (one, other):
                with open_datagrams(area, "a") as sender:
                    sender.sendto(area.record.name.encode(), (area.address("b"), PORT))
            assert in_one.recv(100) == one.record.name.encode()
            assert in_other.recv(100) == other.record.name.encode()


async def test_a_call_at_a_node_starts_there_and_is_cancelled_with_its_task() -> None:
    async with wide_area(THREE) as area:

        async def own_address() -> str:
            transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(area.address("a"), PORT)
            )
            address: str = transport.get_extra_info("sockname")[0]
            transport.close()
            return address

        assert await call_at(area, "c", own_address) == area.address("c")
        begun: list[int] = []
        ended: list[int] = []

        async def forever() -> None:
            begun.append(1)
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        async with asyncio.TaskGroup() as group:
            # More than the default executor has threads.
            tasks = [group.create_task(call_at(area, "b", forever)) for _ in range(40)]
            await until(lambda: len(begun) == 40)
            for task in tasks:
                task.cancel()
        assert len(ended) == 40
        assert all(task.cancelled() for task in tasks)


async def test_a_call_at_a_node_has_time_to_end() -> None:
    """A site that was cancelled again while it ended left its processes and connections."""
    begun, ended = threading.Event(), threading.Event()

    async def slow_to_end() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.5)
            ended.set()

    async with wide_area(THREE) as area:
        task = asyncio.create_task(call_at(area, "b", slow_to_end))
        await until(begun.is_set)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()
        assert ended.is_set()


async def test_a_call_at_a_node_ends_although_it_swallows_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nats-py does now and then: the thread would run on, and this process would never end."""
    monkeypatch.setattr(wan_testing, "_CANCELLED_AGAIN_AFTER", 0.5)
    begun, swallowed = threading.Event(), threading.Event()

    async def stubborn() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            swallowed.set()
        await asyncio.Event().wait()

    async with wide_area(THREE) as area:
        task = asyncio.create_task(call_at(area, "b", stubborn))
        await until(begun.is_set)
        task.cancel()
        await until(swallowed.is_set)
        task.cancel()
        await asyncio.wait([task], timeout=30)
        assert task.cancelled()
        await until(lambda: not any(area.namespace("b") in thread.name for thread in threading.enumerate()))


async def fail() -> None:
    raise ZeroDivisionError


async def test_leaving_the_block_ends_what_runs_inside() -> None:
    async with wide_area(THREE) as area:
        name = area.record.name
        with pytest.raises(ZeroDivisionError):
            await call_at(area, "a", fail)
        sleeper = await asyncio.create_subprocess_exec(*area.command("a", "sleep", "1000"))
        assert len(namespaces_of(name)) == 3
    assert await sleeper.wait() == -signal.SIGTERM
    assert namespaces_of(name) == set()
    assert name not in running()


def test_an_emulator_that_is_killed_is_cleared_by_the_next_start() -> None:
    name = new_name()
    _, process = start(THREE, name)
    with pytest.raises(InputError, match="is up already"):
        start(THREE, name)
    os.kill(emulator_process(name), signal.SIGKILL)
    process.communicate()
    assert len(namespaces_of(name)) == 3
    assert name not in running()
    area, process = start(THREE, name)
    try:
        assert len(round_trips(area, [("a", "b")])["a", "b"]) == 5
    finally:
        stop(name, process)
    assert namespaces_of(name) == set()


def test_an_emulator_that_is_killed_is_cleared_on_request() -> None:
    name = new_name()
    _, process = start(THREE, name)
    process.kill()
    process.communicate()
    # Another test's start may have been faster.
    clear_leftovers()
    assert namespaces_of(name) == set()


async def test_a_killed_owner_leaves_nothing_behind() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio\n"
        "from nearcast.lab.wan import *\n"
        "async def main():\n"
        "    async with wide_area(from_rtts({('a', 'b'): 4.0})) as area:\n"
        "        async with process_at(area, 'a', 'sleep', '1000'):\n"
        "            print(area.record.name, flush=True)\n"
        "            await asyncio.sleep(1000)\n"
        "asyncio.run(main())",
        stdout=asyncio.subprocess.PIPE,
    )
    assert owner.stdout is not None
    name = (await owner.stdout.readline()).decode().strip()
    assert len(namespaces_of(name)) == 2
    owner.kill()
    await owner.communicate()
    await until(lambda: not namespaces_of(name) and name not in running())


def test_a_namespace_of_somebody_else_is_left_alone() -> None:
    name = new_name()
    foreign = f"nc-{name}-b"
    subprocess.run(["ip", "netns", "add", foreign], check=True)
    try:
        with pytest.raises(InputError, match=f"namespace '{foreign}' that is not ours"):
            start(THREE, name)
        assert namespaces_of(name) == {foreign}
    finally:
        subprocess.run(["ip", "netns", "delete", foreign], check=True)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run([NEARCAST, "lab", "wan", *arguments], capture_output=True, text=True, timeout=120)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cities = tmp_path / "cities.csv"
    cities.write_text("source,destination,rtt_ms\ntokyo,osaka,10\ntokyo,seoul,34\nosaka,seoul,24\n")
    name = ["--name", new_name()]

    def here(*arguments: str) -> str:
        """The command in this process, which is faster; what it printed."""
        monkeypatch.setattr(sys, "argv", ["nearcast", "lab", "wan", *arguments, *name])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    up = run("up", "--topology", str(cities), *name)
    try:
        assert (up.returncode, up.stderr) == (0, "")
        assert "10.77.0.3" in up.stdout
        here("set", "tokyo", "seoul", "--delay", "40ms")
        here("set", "osaka", "seoul", "--cut")
        shown = {tuple(line.split()[:2]): line.split() for line in here("show").splitlines()}
        assert shown["tokyo", "osaka"][4] == "10.0"
        # How accurate it is has a test of its own; here only that each pair shows its own measurement.
        assert 10.0 <= float(shown["tokyo", "osaka"][5]) < 80.0 <= float(shown["tokyo", "seoul"][5])
        assert shown["osaka", "seoul"][5] == "cut"
        told = {(link["a"], link["b"]): link for link in json.loads(here("show", "--json"))}
        assert (told["tokyo", "seoul"]["a_to_b_ms"], told["tokyo", "osaka"]["cut"]) == (40.0, False)
        assert told["tokyo", "seoul"]["measured_rtt_ms"] >= 80.0
        assert (told["osaka", "seoul"]["cut"], told["osaka", "seoul"]["measured_rtt_ms"]) == (True, None)
        inside = run("run", "--in", "seoul", *name, "--", "sh", "-c", "ip -br address show wan0; exit 7")
        assert "10.77.0.3/16" in inside.stdout
        assert inside.returncode == 7
    finally:
        here("down")
    assert namespaces_of(name[1]) == set()


def test_without_the_right_it_says_so_in_one_sentence() -> None:
    def drop_rights() -> None:
        # PR_CAPBSET_DROP of CAP_NET_ADMIN and CAP_SYS_ADMIN: root without what makes namespaces.
        for capability in (12, 21):
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)

    code = "from nearcast.lab.wan import from_rtts, start; start(from_rtts({('a', 'b'): 1.0}), 'none')"
    refused = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, preexec_fn=drop_rights)
    assert refused.stderr.splitlines()[-1].startswith(
        "nearcast.errors.NearcastError: "
        "a wide area needs the right to create network namespaces and TUN devices (be root): "
    )


def test_without_iproute2_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert missing_right() == "a wide area needs the command `ip`: install the package iproute2"
