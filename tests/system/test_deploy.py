"""The quick start of docs/deploy.md, command by command: two sites in two namespaces with TLS and credentials.

It runs in a mount and network namespace of its own, so that the names in the document are free.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from nearcast.lab.wan import missing_right

pytestmark = [
    pytest.mark.skipif((reason := missing_right()) is not None, reason=str(reason)),
    pytest.mark.xdist_group("wan"),
]

DOCS = Path(__file__).parents[2]
CLIENT = """
import asyncio, nearcast

async def main():
    async with nearcast.connect("nats://10.77.0.1:4222", credentials="auth/users/main/car7.creds") as car:
        async with car.subscribe("gps.car7") as speeding:
            await car.publish("gps.car7", {"kmh": 130})
            print("notified", (await anext(speeding)).data)

asyncio.run(main())
"""


def commands() -> tuple[str, list[str]]:
    """The configuration file and the commands of the document."""
    text = (DOCS / "docs" / "deploy.md").read_text()
    config = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    block = re.search(r"```\n(mkdir .*?)```", text, re.DOTALL)
    assert config
    assert block
    return config[1], block[1].splitlines()


async def test_the_quick_start_works_as_it_is_written(tmp_path: Path) -> None:
    config, lines = commands()
    assert len(lines) <= 10
    processor = re.findall(r"```python\n(.*?)```", (DOCS / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "speeding.py").write_text(processor)
    (tmp_path / "nearcast.toml").write_text(config)
    (tmp_path / "client.py").write_text(CLIENT)
    *before, last = lines
    script = [
        "mkdir -p /run/netns && mount -t tmpfs none /run/netns",
        *before,
        # The others start in the background; who types the last command comes later, too.
        f"for n in $(seq 60); do {last} > sites.txt 2> sites.err",
        "grep -q tokyo sites.txt && grep -q cloud sites.txt && break; sleep 1; done",
        "cat sites.txt sites.err",
        f"ip netns exec tokyo {sys.executable} client.py",
        "kill $(jobs -p); wait",
    ]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    process = await asyncio.create_subprocess_exec(
        "unshare", "--mount", "--net", "bash", "-c", "\n".join(script), cwd=tmp_path, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), 270)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    text = output.decode()
    assert "notified {'mean_kmh': 130.0}" in text, text
    assert re.search(r"tokyo .*\n(.*\n)*.*cloud |cloud .*\n(.*\n)*.*tokyo ", (tmp_path / "sites.txt").read_text()), text
