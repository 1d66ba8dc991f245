"""`nearcast init`: a small working project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.errors import InputError

_CONFIG = """# Two sites on this machine. Run them with `nearcast dev` (reloads processors) or `nearcast up`.
processors = ["alerts"]          # alerts.py, beside this file

[[site]]
name = "edge"
port = {port}                      # this and the next five ports
position = [59.33, 18.07]
[site.store]
directory = "stores/edge"

[[site]]
name = "cloud"
kind = "cloud"
port = {cloud}
position = [60.17, 24.94]
[site.store]
directory = "stores/cloud"

[[topic]]
name = "readings.*"              # a family: readings.kitchen, readings.cellar, …
managed_by = ["edge"]            # runs the processor
replicas = ["edge", "cloud"]     # stores that keep it
quorum = 1                       # `publish` returns when one store has it
bound_ms = 50

[cluster]                        # `nearcast cluster run`: datasets and channels on Spark; needs Java 17
warehouse = "warehouse"
"""

_PROCESSOR = '''"""Alerts for rooms that are too hot."""

import msgspec

from nearcast import Message, SpoolView, processor

LIMIT = 60.0


class Reading(msgspec.Struct):
    """What a sensor publishes; anything else becomes a dead letter."""

    celsius: float


class Alert(msgspec.Struct):
    """What subscribers get."""

    room: str
    celsius: float
    rising: bool


@processor("readings.*", spool=10, type=Reading)
def alert(message: Message[Reading], spool: SpoolView) -> Alert | None:
    """Alert when a room is hotter than the limit. The spool has its last readings."""
    now = message.data.celsius
    if now <= LIMIT:
        return None
    before = [past.data.celsius for past in spool]
    return Alert(message.topic.removeprefix("readings."), now, rising=bool(before) and now > before[-1])
'''

_TEST = '''"""The processor without servers, and the whole on real ones."""

import asyncio

import nearcast
from nearcast.testing import TopicSpec, run_processor, sites

import alerts


def test_a_hot_room_is_announced():
    cool, hot = run_processor(alerts.alert, [{"celsius": 21}, {"celsius": 71}], topic="readings.kitchen")
    assert cool.notifications == []
    assert hot.notifications[0].data == {"room": "kitchen", "celsius": 71.0, "rising": True}


def test_a_sensor_that_sends_nonsense_is_a_dead_letter():
    (outcome,) = run_processor(alerts.alert, [{"celsius": "hot"}], topic="readings.kitchen")
    assert "Expected `float`" in outcome.reason


def test_on_real_sites():
    async def main():
        async with sites(TopicSpec("readings.*", ("edge",)), names=("edge",), processors=[alerts]) as running:
            async with nearcast.connect(running.url("edge")) as client, client.subscribe("readings.*") as received:
                await client.publish("readings.kitchen", {"celsius": 71})
                assert (await anext(received)).data["room"] == "kitchen"

    asyncio.run(main())
'''

_CHANNEL = """-- Rooms hotter than each subscriber's own limit. With the sites running (and Java 17):
--   nearcast dataset add readings --from fed.readings --schema "room STRING NOT NULL, celsius DOUBLE"
--   nearcast channel add hot --continuous --param limit:double --query hot.sql
--   nearcast cluster run
--   nearcast sub hot --channel --param limit=60
SELECT r.room, r.celsius FROM readings r WHERE r.celsius > :limit
"""

_IGNORE = ".nearcast/\nstores/*/*\n!stores/*/.keep\nwarehouse/\n__pycache__/\n"


def command(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty.")],
    port: Annotated[int, typer.Option(min=1024, max=65500, help="The first of the twenty ports it uses.")] = 4222,
) -> None:
    """Write a small project: sites, a typed processor, a channel and a test. Example: nearcast init myapp"""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is not empty; give a folder that does not exist yet")
    files = {
        "nearcast.toml": _CONFIG.format(port=port, cloud=port + 10),
        "alerts.py": _PROCESSOR,
        "test_alerts.py": _TEST,
        "hot.sql": _CHANNEL,
        ".gitignore": _IGNORE,
        "stores/edge/.keep": "",
        "stores/cloud/.keep": "",
    }
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    except OSError as error:
        raise InputError(f"{folder} cannot be made: {error.strerror}") from None
    typer.echo(f"Made {folder}: nearcast.toml, alerts.py (a processor), test_alerts.py, hot.sql (a channel).")
    typer.echo(f"Next: cd {folder}; nearcast dev")
