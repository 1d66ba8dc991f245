"""Datasets and channels on the command line: `ls`, `info` and `rm` like all nouns, JSON for programs, `feed`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cluster.harness import add_report_channels, two_sites, write_configuration
from tests.system.test_cli import run

from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.streams import StreamReader
from nearcast.site.site import run_sites


async def test_datasets_and_channels_are_listed_shown_and_removed(tmp_path: Path) -> None:
    deployment = two_sites(tmp_path)
    config = ("--config", str(write_configuration(deployment, tmp_path)))
    async with run_sites(deployment, tmp_path / "run"):
        for noun in ("dataset", "channel"):
            assert await run(noun, "ls", *config) == (0, f"There is no {noun}. Add one with: nearcast {noun} add\n", "")
        await add_report_channels(deployment)
        code, out, _ = await run("dataset", "ls", *config)
        assert code == 0
        assert out.splitlines()[1].split()[:2] == ["reports", "fed.reports"]
        (dataset,) = json.loads((await run("dataset", "ls", "--json", *config))[1])
        assert dataset["schema"] == "id STRING NOT NULL, kind STRING"
        assert json.loads((await run("dataset", "info", "reports", "--json", *config))[1])["source"] == "fed.reports"
        channels = json.loads((await run("channel", "ls", "--json", *config))[1])
        assert [(channel["name"], channel["runs"]) for channel in channels] == [
            ("by_period", "every 0.5 s"),
            ("of_kind", "continuously"),
        ]
        channel = json.loads((await run("channel", "info", "of_kind", "--json", *config))[1])
        assert (channel["parameters"], channel["new"]) == ([{"name": "kind", "type": "string"}], "reports")
        code, _, err = await run("channel", "info", "other", *config)
        assert (code, err) == (2, "nearcast: there is no channel 'other'; there are: by_period, of_kind\n")
        code, _, err = await run("dataset", "rm", "reports", *config)
        assert (code, err) == (
            2,
            "nearcast: dataset 'reports' is read by channel by_period, of_kind; remove that first\n",
        )
        for name in ("by_period", "of_kind"):
            assert await run("channel", "rm", name, *config) == (0, f"Channel {name} is removed.\n", "")
        code, out, _ = await run("dataset", "rm", "reports", "--json", *config)
        assert (code, json.loads(out)) == (0, {"name": "reports"})
        for verb in ("list", "drop"):
            assert (await run("dataset", verb, *config))[0] == 2


async def test_feed_uses_the_broker_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = two_sites(tmp_path)
    records = tmp_path / "records.jsonl"
    records.write_text('{"id":"a"}\n{"id":"b"}\n')
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment)
        monkeypatch.setenv("NEARCAST_URL", deployment.sites[0].url)
        assert await run("feed", "reports", str(records)) == (0, "Dataset reports was fed 2 records.\n", "")
        connection = await open_connection([deployment.cloud().store_url], name="test")
        try:
            async with asyncio.timeout(20):
                found = await StreamReader(connection).bounds(subjects.feed_stream("reports"))
                assert (found.first, found.last) == (1, 2)
        finally:
            await connection.close()
