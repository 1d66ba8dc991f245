"""What a running data cluster answers: its state, quarantined records, queries, and what only its Spark can say."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import feed_all, two_sites, until

import nearcast
from nearcast import testing
from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import running_driver
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.audit import AuditLog
from nearcast.nats.connection import Connection, open_connection
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.protocol.data_cluster import (
    AdHocAnswer,
    AdHocQuery,
    ChannelCheck,
    ChannelReplay,
    ChannelTrial,
    ColumnsCheck,
    DataClusterState,
    DatasetLoad,
    QuarantinedRecord,
    QuarantineRequest,
    RecordFile,
    ReplayAnswer,
)
from nearcast.site.site import run_sites

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]
T = TypeVar("T")
REPORTS = DatasetSpec("reports", "id STRING NOT NULL, kind STRING, severity INT", "fed.reports")
OF_KIND = ChannelSpec("of_kind", "SELECT r.id FROM reports r WHERE r.kind = :kind", (Parameter("kind", "string"),))


async def test_state_quarantine_and_query(spark: SparkSession, tmp_path: Path) -> None:
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        admin = await asyncio.to_thread(Admin, deployment)
        await asyncio.to_thread(admin.add_dataset, REPORTS, spark)
        edge, cloud = (site.url for site in deployment.sites)
        connection = await open_connection([edge], name="test", timeout=10)

        async def ask(verb: str, body: Any, answer: type[T]) -> T:
            return await call(connection, subjects.data_cluster(verb), body, answer, timeout=60)

        async with running_driver(spark, deployment) as running, nearcast.connect(cloud) as client:
            good = [{"id": f"r{n}", "kind": "fire" if n % 3 else "flood", "severity": n} for n in range(30)]
            await feed_all(client, "reports", [*good, b"not json", {"kind": "fire"}])
            await until(lambda: running.position("reports") == 32, "the reports")

            state = await ask("state", None, DataClusterState)
            (producer,) = state.producers
            assert (producer.name, producer.rows, producer.refused, producer.problem) == ("reports", 30, 2, "")
            (dataset,) = state.datasets
            assert (dataset.name, dataset.rows, dataset.quarantined) == ("reports", 30, 2)
            assert dataset.written > 1.6e9

            refused = await ask("quarantine", QuarantineRequest("reports"), list[QuarantinedRecord])
            assert [one.sequence for one in refused] == [32, 31], "the newest first"
            assert [one.reason for one in refused] == ["field id is missing", "a JSON object is needed"]
            assert refused[1].payload == "not json"
            assert len(await ask("quarantine", QuarantineRequest("reports", 1), list[QuarantinedRecord])) == 1

            counted = "SELECT kind, count(*) AS n FROM reports GROUP BY kind ORDER BY kind"
            found = await ask("query", AdHocQuery(counted), AdHocAnswer)
            assert (found.columns, found.rows, found.more) == (["kind", "n"], [["fire", "20"], ["flood", "10"]], False)
            some = await ask("query", AdHocQuery("SELECT id FROM reports", 7), AdHocAnswer)
            assert (len(some.rows), some.more) == (7, True)
            for wrong, reason in (
                ("SELECT nothing FROM reports", "the query fails: "),
                ("SELECT * FROM people", "there is no dataset 'people'"),
            ):
                with pytest.raises(InputError, match=reason):
                    await ask("query", AdHocQuery(wrong), AdHocAnswer)
            with pytest.raises(InputError, match="there is no stream dataset 'people'; there are: reports"):
                await ask("quarantine", QuarantineRequest("people"), list[QuarantinedRecord])
        with pytest.raises(NoAnswerError):  # it has ended
            await ask("state", None, DataClusterState)
        await connection.close()


async def answers(connection: Connection) -> bool:
    try:
        await call(connection, subjects.data_cluster("state"), None, DataClusterState)
    except NoAnswerError:
        return False
    return True


async def test_what_needs_spark_is_asked_of_the_running_cluster(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark_of_its_own() -> None:
        raise AssertionError("the data cluster was to be asked")

    monkeypatch.setattr("nearcast.cluster.admin._validation_session", no_spark_of_its_own)
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        admin = await asyncio.to_thread(Admin, deployment)
        connection = await open_connection([deployment.cloud().url], name="test", timeout=10)

        async def ask(verb: str, body: Any, answer: type[T]) -> T:
            return await call(connection, subjects.data_cluster(verb), body, answer, timeout=60)

        async with (
            running_driver(spark, deployment) as running,
            nearcast.connect(deployment.cloud().url) as client,
        ):
            await testing.until(lambda: answers(connection), 60)
            await asyncio.to_thread(admin.add_dataset, REPORTS)
            altered = await asyncio.to_thread(admin.alter_dataset, "reports", "note STRING")
            assert altered.schema.endswith("severity INT, note STRING")
            with pytest.raises(InputError, match="column 'note': it exists already"):
                await asyncio.to_thread(admin.alter_dataset, "reports", "note STRING")
            with pytest.raises(InputError, match="is not understood"):
                await ask("check-columns", ColumnsCheck(altered, "note NOTHING"), str)

            channel = await asyncio.to_thread(admin.add_channel, OF_KIND)
            assert channel.new == "reports"
            noted = await AuditLog(connection, "cloud").entries()
            assert [(one.who, one.action, one.what) for one in noted] == [
                ("anonymous", "dataset add", "reports"),
                ("anonymous", "dataset alter", "reports"),
                ("anonymous", "channel add", "of_kind"),
            ]
            assert await ask("check-channel", ChannelCheck(OF_KIND, [altered]), str) == "reports"
            records = tmp_path / "some.csv"
            records.write_text("id,kind,severity,note\na,fire,1,\nb,flood,2,\n")
            tried = await asyncio.to_thread(admin.try_channel, "of_kind", {"reports": records}, {"kind": "fire"})
            assert tried == [{"id": "a"}]
            for name, content, reason in (
                ("some.exe", b"", "some.exe: unknown file type; allowed: .csv"),
                ("some.parquet", b"no", "some.parquet: "),
                ("some.jsonl", b'{"id": 1', "some.jsonl: "),
                ("some.csv", b"kind\nfire\n", "some.csv: column 'id' is missing"),
            ):
                trial = ChannelTrial(channel, [altered], [RecordFile("reports", name, content)], {"kind": "fire"})
                with pytest.raises(InputError, match=reason):
                    await ask("test-channel", trial, list[dict[str, Any]])
            with pytest.raises(InputError, match="parameter 'kind' is missing"):
                await ask("test-channel", ChannelTrial(channel, [altered], [], {}), list[dict[str, Any]])

            await until(lambda: running.position("reports") == 0, "the dataset")
            await feed_all(client, "reports", [{"id": f"r{n}", "kind": "fire", "severity": n} for n in range(3)])
            await until(lambda: running.position("reports") == 3, "the reports")
            replay = ChannelReplay(channel, [altered], 0.0, {"kind": "fire"})
            found = await ask("replay-channel", replay, ReplayAnswer)
            assert found.count == 1
            assert [row["id"] for row in json.loads(found.results[0])["rows"]] == ["r0", "r1", "r2"]
            with pytest.raises(InputError, match="channel of_kind has no subscription"):
                await ask("replay-channel", ChannelReplay(channel, [altered], 0.0), ReplayAnswer)
            async with client.subscribe_channel("of_kind", kind="fire") as results:
                everyone = ChannelReplay(channel, [altered], 0.0, publish=True)
                assert (await ask("replay-channel", everyone, ReplayAnswer)).count == 1
                async with asyncio.timeout(60):
                    assert [row["id"] for row in (await anext(results)).data["rows"]] == ["r0", "r1", "r2"]

            shelters = DatasetSpec("shelters", "name STRING NOT NULL, beds INT", version=1)
            content = RecordFile("shelters", "shelters.jsonl", b'{"name": "Harbour School", "beds": 40}\n')
            assert await ask("load-dataset", DatasetLoad(shelters, content), int) == 1
            past = DatasetLoad(
                REPORTS, RecordFile("reports", "past.jsonl", b'{"id": "p0", "kind": "fire", "severity": 9}\n')
            )
            assert await ask("backfill-dataset", past, int) == 1
            with pytest.raises(InputError, match="the same records were put into dataset reports before"):
                await ask("backfill-dataset", past, int)
            with pytest.raises(InputError, match="dataset shelters is static"):
                await ask("backfill-dataset", DatasetLoad(shelters, content), int)
            for spec, reason in (
                (REPORTS, "'reports' is a stream from fed.reports"),
                (DatasetSpec("../reports", "id STRING"), "dataset name"),
            ):
                with pytest.raises(InputError, match=reason):
                    await ask("load-dataset", DatasetLoad(spec, content), int)
        await connection.close()
