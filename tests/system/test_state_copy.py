"""The cloud's disk is lost: the coordinators' state comes back from its copy, or from what the sites follow."""

from __future__ import annotations

import asyncio
import itertools
import shutil

from tests.system.control import Control, coordinator

from nearcast.coordinator.state_copy import discover_sites
from nearcast.domain.topic import TopicSpec
from nearcast.nats import subjects
from nearcast.nats.tasks import cancel_and_wait
from nearcast.testing import RunningSites, until

GPS = TopicSpec("gps", ("tokyo",))
CALM = {"lease": 4.0, "site_lost_after": 30.0}  # the store is away for a moment, and machines are slow


async def lose_disk(c: RunningSites) -> None:
    store = c.sites["cloud"].store
    await store.stop()
    folder = c.folder / "stores" / "cloud"
    await asyncio.to_thread(shutil.rmtree, folder)
    folder.mkdir()
    await store.start()


async def moved_and_copied(c: RunningSites, control: Control) -> None:
    """The topic is at another site than the configuration says, and the copy knows."""
    assert (await control.ask("topic", "move", name="gps", to=["osaka"]))["outcome"] == "done"
    copy = control.coordinator.copy

    async def copied() -> bool:
        if not copy.site or copy._changes:
            return False
        manager = control.connection.jsm(prefix=subjects.store_api(copy.site))
        found = await manager.get_last_msg(f"KV_{subjects.STATE_COPY_BUCKET}", "$KV.nearcast-copy.*.topic.gps")
        return b'"osaka"' in (found.data or b"")

    await until(copied)


async def check_owner(c: RunningSites, control: Control, term: int) -> None:
    """One owner, the one of before; and the sites obey."""
    await until(lambda: control.coordinator.term.number() > term)
    assert await control.members("gps") == ["osaka/worker-0"]
    running = [name for name, site in c.sites.items() if "gps" in site.agent.topic_host.running]
    assert running == ["osaka"]
    assert (await control.ask("topic", "move", name="gps", to=["tokyo"]))["outcome"] == "done"
    await until(lambda: [n for n, s in c.sites.items() if "gps" in s.agent.topic_host.running] == ["tokyo"])


async def test_the_state_is_restored_from_its_copy_at_a_second_site(city):
    """Before, terms began at 1 again and were refused, and the records were those of the configuration."""
    async with city(GPS, report_seconds=0.2) as c:
        async with coordinator(c, **CALM):
            pass
        async with coordinator(c, **CALM) as control:
            assert control.coordinator.term.number() == 2
            await moved_and_copied(c, control)
        await lose_disk(c)
        async with coordinator(c, **CALM) as control:
            await check_owner(c, control, 2)


async def test_a_coordinator_that_runs_goes_on_with_the_restored_state(city):
    async with city(GPS, report_seconds=0.2) as c, coordinator(c, **CALM) as control:
        await moved_and_copied(c, control)
        state = control.leader.registry.identity
        await lose_disk(c)
        await until(
            lambda: control.coordinator.leading.is_set() and control.leader.registry.identity not in ("", state),
            limit=90,
        )
        await until(lambda: set(c.sites) <= set(control.leader.monitor.reports))
        await check_owner(c, control, 1)


async def test_without_a_copy_the_sites_bring_the_records_they_follow(city):
    async with city(GPS, report_seconds=0.2) as c:
        async with coordinator(c, **CALM) as control:
            await moved_and_copied(c, control)
            copy = control.coordinator.copy.site
            await until(lambda: all(site.agent.topic_host.term == 1 for site in c.sites.values()))
            assert {(one.site, one.term) for one in await discover_sites(control.connection)} == {
                ("tokyo", 1), ("osaka", 1), ("cloud", 1),
            }  # fmt: skip
        await lose_disk(c)
        other = c.sites[copy]
        await other.store.stop()
        async with coordinator(c, wait=False, **CALM) as control:
            await until(control.coordinator.leading.is_set, limit=60)
            await until(lambda: set(c.sites) <= set(control.leader.monitor.reports))
            await until(
                lambda: all(s.agent.topic_host.state == control.leader.registry.identity for s in c.sites.values())
            )
            await check_owner(c, control, 1)


async def test_a_site_that_should_not_have_the_copy_is_left_while_changes_never_pause(city, monkeypatch):
    async with city(GPS, report_seconds=0.2) as c, coordinator(c, **CALM) as control:
        copy = control.coordinator.copy
        await until(lambda: bool(copy.site))
        first = copy.site
        (other,) = set(c.sites) - {"cloud", first}
        monkeypatch.setattr(control.leader, "copy_candidates", lambda site: [other])

        async def change() -> None:
            for n in itertools.count():
                copy.note("noise", b"%d" % n)
                await asyncio.sleep(0.05)

        changing = asyncio.create_task(change())
        try:
            await until(lambda: copy.site == other, limit=60)
        finally:
            await cancel_and_wait(changing)
