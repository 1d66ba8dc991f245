"""docs/operate.md, back up and restore: a copied store gives what was in it, also for a topic with one replica."""

from __future__ import annotations

import shutil

import nearcast
from nearcast.domain.topic import TopicSpec
from nearcast.testing import until


async def test_a_copied_store_is_put_back(city, tmp_path) -> None:
    alone, shared = TopicSpec("diary", (), ("tokyo",), 1), TopicSpec("news", (), ("tokyo", "osaka"), 1)
    async with city(alone, shared, names=("tokyo", "osaka")) as c, nearcast.connect(c.url("osaka")) as client:
        tokyo = c.sites["tokyo"]
        directory = tokyo.spec.store.directory
        for n in range(20):
            await client.publish("diary", {"n": n})
            await client.publish("news", {"n": n})
        await tokyo.stop()
        shutil.copytree(directory, tmp_path / "copy")
        shutil.rmtree(directory)  # the disk is lost
        await client.publish("news", {"n": 20})
        shutil.copytree(tmp_path / "copy", directory)
        await tokyo.start()

        async def complete() -> bool:  # what came after the copy is fetched from the other replica
            async with nearcast.connect(c.url("tokyo")) as reader:
                diary = [message.data["n"] async for message in reader.history("diary")]
                news = [message.data["n"] async for message in reader.history("news")]
            return diary == list(range(20)) and news == list(range(21))

        await until(complete, 60)
