"""README's Python examples run as they stand, but for the port."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from nearcast.domain.topic import TopicSpec

README = Path(__file__).parents[2] / "README.md"


async def test_the_python_examples(city, tmp_path) -> None:
    processor, without_servers, client, script = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "speeding.py").write_text(processor)
    await run(without_servers, tmp_path)
    (tmp_path / "city_processors.py").write_text(processor)
    async with city(TopicSpec("gps.*", ("tokyo",), ("tokyo", "osaka"), 2), names=("tokyo", "osaka")) as c:
        for example, expected in ((client, "{'mean_kmh': 130.0}"), (script, "gps.car8 130.0")):
            code = example.replace("nats://127.0.0.1:4222", c.url("tokyo"))
            assert code != example
            assert expected in await run(code, tmp_path)


async def run(code: str, folder: Path) -> str:
    """What a script prints; it must end well."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()
    return output.decode()
