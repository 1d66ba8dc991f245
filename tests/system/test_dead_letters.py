"""Dead letters: what overflows becomes one, stores keep those of durable topics, and they can be worked with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import Result
from tests.system.worker_counts import stats_of_workers
from typer.testing import CliRunner

import nearcast
from nearcast.cli.dead_letters import app
from nearcast.client.dead_letters import DeadLetters, LetterFilter
from nearcast.domain.topic import TopicSpec
from nearcast.testing import RunningSites, sites, until

PROCESSORS = """
import json, os, pathlib, signal, time
from nearcast import processor

@processor("alerts.*", spool=5)
def attempt(message, spool):
    if message.attempt < message.data.get("kills", 0):
        os.kill(os.getpid(), signal.SIGKILL)
    if message.attempt < message.data["fails"]:
        raise ValueError(f"attempt {message.attempt}")
    return {"n": message.data["n"], "attempt": message.attempt}

@processor("images", spool=2, timeout=120)
def wait(message, spool):
    while not (pathlib.Path(__file__).parent / "go").exists():
        time.sleep(0.05)
    return {"n": int(message.payload[:8])}
"""
ALERTS = TopicSpec("alerts.*", ("tokyo",), ("tokyo", "osaka"), quorum=2, max_attempts=3)
MEBIBYTE = 1 << 20
IMAGES = 120


def city(folder: Path, topic: TopicSpec) -> Any:
    (folder / "letter_processors.py").write_text(PROCESSORS)
    return sites(
        topic,
        names=("tokyo", "osaka"),
        processors=["letter_processors"],
        search_path=[str(folder)],
        folder=folder,
    )


async def run(*words: str) -> Result:
    """A command, beside the sites of this process."""
    return await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])


async def command(*words: str) -> Any:
    """What a command prints."""
    done = await run(*words)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


async def test_letters_are_kept_retried_and_given_up_after_max_attempts(tmp_path: Path) -> None:
    async with (
        city(tmp_path, ALERTS) as c,
        nearcast.connect(c.url("osaka")) as client,
        client.subscribe("alerts.*") as subscription,
    ):
        letters, everything = DeadLetters(client.connection), LetterFilter("alerts.*")

        async def attempts() -> list[tuple[int, int]]:
            return [(json.loads(one.payload)["n"], one.attempts) for one in await letters.find(everything)]

        async def retry(*, force: bool = False) -> list[str]:
            found = await letters.find(everything)
            return [one.outcome async for one in letters.retry(found, 50, force=force)]

        for n, fails in enumerate((0, 1, 99)):
            await client.publish("alerts.fire", {"n": n, "fails": fails})
        assert (await anext(subscription)).data == {"n": 0, "attempt": 0}

        async def have(*expected: tuple[int, int]) -> bool:
            return await attempts() == list(expected)

        await until(lambda: have((1, 1), (2, 1)))
        (first, _) = await letters.find(everything)
        assert (first.topic, first.reason, first.publisher) == ("alerts.fire", "ValueError: attempt 0", client.name)
        # One is cured, one is poison.
        assert await retry() == ["sent", "sent"]
        notification = await anext(subscription)
        assert notification.data == {"n": 1, "attempt": 1}
        assert notification.late
        await until(lambda: have((2, 2)))
        assert await retry() == ["sent"]
        await until(lambda: have((2, 3)))
        assert await retry() == ["not tried again: it had 3 of 3 attempts"]
        assert await attempts() == [(2, 3)]
        assert await retry(force=True) == ["sent"]
        await until(lambda: have((2, 4)))
        # Each store has the letters and what became of them.
        (row,) = await command("ls", "--url", c.url("tokyo"))
        assert (row["topic"], row["attempts"], row["reason"]) == ("alerts.fire", 4, "ValueError: attempt 3")
        shown = await command("show", "alerts.*", row["id"], "--url", c.url("tokyo"))
        assert json.loads(shown["payload"])["n"] == 2
        assert await command("ls", "alerts.*", "--reason", "KeyError", "--url", c.url("tokyo")) == []
        dropped = await command("drop", "alerts.*", "--since", "1h", "--url", c.url("osaka"))
        assert dropped["dropped"] == 1
        assert await command("ls", "alerts.*", "--url", c.url("tokyo")) == []
        assert [one.data["n"] async for one in client.history("alerts.fire")] == [0, 1]


async def test_a_publication_whose_processor_is_killed_has_further_attempts(tmp_path: Path) -> None:
    """What comes behind it waits: the order is kept."""
    async with (
        city(tmp_path, ALERTS) as c,
        nearcast.connect(c.url("osaka")) as client,
        client.subscribe("alerts.*") as subscription,
    ):
        for n, kills in enumerate((1, 0, 99, 0)):
            await client.publish("alerts.fire", {"n": n, "fails": 0, "kills": kills})
        found = [(await anext(subscription)).data for _ in range(3)]
        assert found == [{"n": 0, "attempt": 1}, {"n": 1, "attempt": 0}, {"n": 3, "attempt": 0}]
        letters, everything = DeadLetters(client.connection), LetterFilter("alerts.*")

        async def reasons() -> list[tuple[int, str]]:
            return [(one.attempts, one.reason) for one in await letters.find(everything)]

        async def given_up() -> bool:
            return await reasons() == [(3, "the processor's process was ended by signal 9")]

        await until(given_up)


async def test_letters_of_plain_topics_are_not_kept(tmp_path: Path) -> None:
    async with city(tmp_path, TopicSpec("alerts.*", ("tokyo",))) as c:
        done = await run("ls", "alerts.*", "--url", c.url("tokyo"))
        assert isinstance(done.exception, nearcast.InputError)
        assert "its dead letters are not kept" in str(done.exception)


async def publish_images(client: nearcast.Client, c: RunningSites, *, wait: bool = False) -> None:
    """Publish them all; with `wait` never more than 16 ahead of the worker, whom the broker would cut off at 64 MiB."""
    for n in range(IMAGES):
        await client.publish("images", b"%08d" % n + bytes(MEBIBYTE - 8))
        if wait and (n + 1) % 16 == 0:
            await accounted(c, n + 1)
    await client.connection.flush(timeout=60)


async def accounted(c: RunningSites, images: int) -> None:
    """Wait until the worker has that many images, in its queue or as dead letters."""

    async def met() -> bool:
        work = await topic_work(c)
        return bool(work.dead_letters + work.waiting == images)

    await until(met, 60)


async def topic_work(c: RunningSites) -> Any:
    return (await stats_of_workers(c.sites["tokyo"]))[0].topics["images"]


async def test_a_burst_of_large_publications_is_bounded_and_the_rest_are_dead_letters(tmp_path: Path) -> None:
    async with (
        city(tmp_path, TopicSpec("images", ("tokyo",))) as c,
        nearcast.connect(c.url("tokyo")) as client,
        client.dead_letters("images") as dead,
        client.subscribe("images", buffer=IMAGES) as subscription,
    ):
        await publish_images(client, c, wait=True)
        await accounted(c, IMAGES)
        work = await topic_work(c)
        assert 64 <= work.waiting <= 80
        lost = [await anext(dead) for _ in range(work.dead_letters)]
        assert {letter.reason for letter in lost} == {"more publications waited than the worker has memory for"}
        (spool,) = (c.folder / "run" / "tokyo" / "spools-worker-0").glob("*.spool")
        assert spool.stat().st_size < 40 * MEBIBYTE
        (tmp_path / "go").touch()
        done = [(await anext(subscription)).data["n"] for _ in range(work.waiting)]
        assert sorted(done + [int(letter.payload[:8]) for letter in lost]) == list(range(IMAGES))


async def test_what_overflows_of_a_durable_topic_is_processed_later(tmp_path: Path) -> None:
    async with (
        city(tmp_path, TopicSpec("images", ("tokyo",), ("tokyo",), quorum=1)) as c,
        nearcast.connect(c.url("tokyo")) as client,
        client.subscribe("images", buffer=IMAGES) as subscription,
    ):
        await publish_images(client, c)

        async def deferred() -> bool:
            work = await topic_work(c)
            return bool(work.deferred > 0)

        await until(deferred, 60)
        (tmp_path / "go").touch()
        done = {(await anext(subscription)).data["n"] for _ in range(IMAGES)}
        assert done == set(range(IMAGES))
        assert (await topic_work(c)).dead_letters == 0
