"""docs/wire-format.md: its examples, as they stand, publish with a quorum and subscribe without our client."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import pytest

from nearcast.domain.topic import TopicSpec

PAGE = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
NODE_MODULES = Path(__file__).parent / "node" / "node_modules"
PLAIN, PROCESSED = "news", "readings.kitchen"


def example(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(code)


async def run(folder: Path, *command: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    return output.decode()


def programs(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    (folder / "example.py").write_text(example("python"))
    found = [([sys.executable, "example.py"], {})]
    if NODE_MODULES.exists():
        (folder / "example.js").write_text(example("js"))
        found.append((["node", "example.js"], {"NODE_PATH": str(NODE_MODULES)}))
    return found


async def test_the_examples_publish_with_a_quorum_and_get_what_the_processor_made(city, tmp_path) -> None:
    topics = [
        TopicSpec("readings.*", ("osaka",), ("tokyo", "osaka"), 2),
        TopicSpec(PLAIN, (), ("tokyo", "osaka"), 2),
    ]
    async with city(*topics, names=("tokyo", "osaka")) as c:
        for command, environment in programs(tmp_path):
            made = await run(tmp_path, *command, c.url("tokyo"), PROCESSED, **environment)
            assert made.startswith("stored by osaka, tokyo\nntf.readings.kitchen {")
            as_published = await run(tmp_path, *command, c.url("tokyo"), PLAIN, **environment)
            stored, message = as_published.splitlines()
            assert stored == "stored by osaka, tokyo"
            assert re.fullmatch(r'pub.news \{"celsius": ?71\}', message)


@pytest.mark.skipif("CI" not in os.environ, reason="elsewhere only who wants to: npm ci --prefix tests/system/node")
def test_the_javascript_client_is_installed() -> None:
    assert NODE_MODULES.exists(), "run: npm ci --prefix tests/system/node"
