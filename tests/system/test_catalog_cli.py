"""Datasets and channels on the command line: `ls`, `info` and `rm` like all nouns, JSON for programs, `feed`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cluster.harness import add_report_channels, two_sites, write_configuration
from tests.system.test_cli import run

import nearcast
from nearcast.cli import feed
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.connection import open_connection
from nearcast.nats.refusals import RefusedError
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


async def test_feed_reads_csv_by_the_schema_of_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids such as 007 were sent as numbers, and every record was quarantined."""
    deployment = two_sites(tmp_path)
    records = tmp_path / "records.csv"
    records.write_text("id,kind\n007,1\n008,\n")
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment)
        monkeypatch.setenv("NEARCAST_URL", deployment.sites[0].url)
        assert await run("feed", "reports", str(records)) == (0, "Dataset reports was fed 2 records.\n", "")
        connection = await open_connection([deployment.cloud().store_url], name="test")
        try:
            stream, subject = subjects.feed_stream("reports"), subjects.feed("reports")
            async with asyncio.timeout(20):
                stored = await StreamReader(connection).read_range(stream, subject, 1, 3)
        finally:
            await connection.close()
        assert [json.loads(entry.payload) for entry in stored] == [
            {"id": "007", "kind": "1"},
            {"id": "008", "kind": None},
        ]
        code, _, err = await run("feed", "others", str(records))
        assert code == 2
        assert "there is no dataset 'others'" in err


async def test_feed_says_that_it_guesses_when_the_schema_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def refused(self: Catalog, name: str) -> None:
        raise RefusedError("may not read it")

    deployment = two_sites(tmp_path)
    records = tmp_path / "records.csv"
    records.write_text("id,kind\n007,1\n")
    async with run_sites(deployment, tmp_path / "run"):
        await add_report_channels(deployment)
        async with nearcast.connect(deployment.sites[0].url) as client:
            with monkeypatch.context() as patched:
                patched.setattr(feed, "Catalog", lambda *_: type("Refusing", (), {"dataset": refused})())
                assert await feed.column_kinds_of(client, "reports") is None
            assert await feed.column_kinds_of(client, "reports") == {"id": "STRING", "kind": "STRING"}
    assert "the types of cells are guessed from the file" in capsys.readouterr().err
