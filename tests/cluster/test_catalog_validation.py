"""`dataset add` and `channel add` beside a running data cluster: its driver validates, no second Spark is started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.cluster.harness import two_sites

from nearcast.cluster import admin as administration
from nearcast.cluster.admin import Admin
from nearcast.cluster.catalog_validation import validate_channel, validate_columns, validate_dataset
from nearcast.cluster.driver import running_driver
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.connection import open_connection
from nearcast.nats.rpc import NoAnswerError, call
from nearcast.nats.tasks import retry
from nearcast.protocol.data_cluster import DataClusterState
from nearcast.site.site import run_sites

pytestmark = pytest.mark.xdist_group("spark")
REPORTS = DatasetSpec("reports", "id STRING NOT NULL, kind STRING", "fed.reports")
ALERTS = ChannelSpec("alerts", "SELECT r.id FROM reports r WHERE r.kind = :kind", (Parameter("kind", "string"),))


async def state(url: str) -> DataClusterState:
    connection = await open_connection([url], name="test", timeout=10)
    try:
        return await call(connection, subjects.data_cluster("state"), None, DataClusterState)
    finally:
        await connection.close()


async def test_the_driver_validates(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> SparkSession:
        raise AssertionError("a Spark of its own was started")

    monkeypatch.setattr(administration, "_validation_session", none)
    deployment = two_sites(tmp_path)
    async with run_sites(deployment, tmp_path / "run"):
        admin = await asyncio.to_thread(Admin, deployment)
        async with running_driver(spark, deployment):
            await retry(lambda: state(deployment.sites[0].url), within=60, on=NoAnswerError)  # it has begun
            for wrong, reason in (
                (DatasetSpec("bad", "id NOTHING", "fed.bad"), "dataset bad"),
                (DatasetSpec("bad", "id STRING", "fed.bad", key="name"), "key is 'name'; its columns are: id"),
            ):
                with pytest.raises(InputError, match=reason):
                    await asyncio.to_thread(admin.add_dataset, wrong)
            await asyncio.to_thread(admin.add_dataset, REPORTS)
            wrong_channel = ChannelSpec(
                "bad", "SELECT r.nothing FROM reports r WHERE r.kind = :kind", ALERTS.parameters
            )
            with pytest.raises(InputError, match="channel bad: line 1, column 8"):
                await asyncio.to_thread(admin.add_channel, wrong_channel)
            added = await asyncio.to_thread(admin.add_channel, ALERTS)  # of a dataset that was added just now
            assert added.new == "reports"
            assert "SELECT" in await asyncio.to_thread(admin.explain_channel, "alerts")
        with pytest.raises(AssertionError, match="of its own was started"):  # the data cluster has ended
            await asyncio.to_thread(admin.explain_channel, "alerts")


ALLOWED = "allowed: STRING, BOOLEAN, numbers, DATE, TIMESTAMP, TIMESTAMP_NTZ, BINARY, and ARRAY"
TYPES = "STRING BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(9,2) DATE TIMESTAMP TIMESTAMP_NTZ BINARY"
COLUMNS = [f"c{n} {kind}, l{n} ARRAY<{kind}>, s{n} STRUCT<x: {kind}>" for n, kind in enumerate(TYPES.split())]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("", "the schema has no columns; give it one at least, such as: id STRING"),
        (" ", "the schema has no columns"),
        ("a INT, A INT", "two columns are named 'A' (case does not count); rename one of them"),
        ("s STRUCT<a: INT, A: INT>", "column s: two fields are named 'A'"),
        ("l ARRAY<STRUCT<a: INT, a: INT>>", "column l: two fields are named 'a'"),
        ("v VOID", f"column v: type VOID is not supported; {ALLOWED}"),
        ("v ARRAY<VOID>", f"column v: type VOID is not supported; {ALLOWED}"),
        ("v VARIANT", f"column v: type VARIANT is not supported; {ALLOWED}"),
        ("s STRUCT<>", "column s is a STRUCT without fields; it needs one at least"),
        ("s STRUCT<t: ARRAY<STRUCT<>>>", "column s.t is a STRUCT without fields"),
        ("i INTERVAL DAY TO SECOND", f"column i: type INTERVAL DAY TO SECOND is not supported; {ALLOWED}"),
        ("i INTERVAL YEAR", "column i: type INTERVAL YEAR is not supported"),
        ("i INTERVAL", "column i: type INTERVAL is not supported"),
        ("t TIME", "column t: type TIME(6) is not supported"),
        ("c CHAR(5)", f"column c: type CHAR(5) is not supported; {ALLOWED}"),
        ("s STRUCT<c: VARCHAR(5)>", "column s.c: type VARCHAR(5) is not supported"),
        ("`tick``s` INT", "column 'tick`s' has a backtick; give it a name without one"),
        ("s STRUCT<`tick``s`: INT>", "column s: field 'tick`s' has a backtick"),
    ],
)
def test_a_schema_that_can_never_work_is_refused(spark: SparkSession, schema: str, words: str) -> None:
    for source in ("fed.bad", ""):
        with pytest.raises(InputError) as caught:
            validate_dataset(spark, DatasetSpec("bad", schema, source))
        assert str(caught.value).startswith("dataset bad: ")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        with pytest.raises(InputError) as caught:
            validate_columns(DatasetSpec("bad", "id STRING", source), schema)
        assert str(caught.value).startswith("dataset bad: ")
        assert words in str(caught.value)


def test_every_type_that_is_allowed_can_be_added(spark: SparkSession) -> None:
    for source in ("fed.good", ""):
        validate_dataset(spark, DatasetSpec("good", ", ".join(COLUMNS), source))
        validate_columns(DatasetSpec("good", "id STRING", source), ", ".join(COLUMNS))
    validate_dataset(spark, DatasetSpec("good", "tags MAP<STRING, INT>"))


def test_a_channel_may_select_every_type(spark: SparkSession) -> None:
    names = ", ".join(f"g.c{n}, g.l{n}, g.s{n}" for n in range(len(COLUMNS)))
    query = f"SELECT {names} FROM good g WHERE g.c0 = :kind"
    spec = ChannelSpec("every", query, ALERTS.parameters, None, "good")
    validate_channel(spark, spec, {"good": DatasetSpec("good", ", ".join(COLUMNS), "fed.good")})


def test_a_channel_may_name_its_columns_as_it_likes(spark: SparkSession) -> None:
    query = "SELECT g.`a.b c`, g.`a.b c` + 1 AS `tick``s` FROM good g WHERE g.kind = :kind"
    spec = ChannelSpec("odd", query, ALERTS.parameters, None, "good")
    validate_channel(spark, spec, {"good": DatasetSpec("good", "kind STRING, `a.b c` INT", "fed.good")})
