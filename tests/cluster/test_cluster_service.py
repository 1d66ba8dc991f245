"""What a running data cluster answers: its state, quarantined records, and a query that is asked once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import feed_all, two_sites, until

import nearcast
from nearcast.cluster.admin import Admin
from nearcast.cluster.driver import running_driver
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.protocol.data_cluster import (
    AdHocAnswer,
    AdHocQuery,
    DataClusterState,
    QuarantinedRecord,
    QuarantineRequest,
)
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
T = TypeVar("T")
REPORTS = DatasetSpec("reports", "id STRING NOT NULL, kind STRING, severity INT", "fed.reports")


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
