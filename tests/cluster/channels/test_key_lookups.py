"""Which joins of a keyed dataset are lookups, and that a lookup gives what the whole dataset would."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from nearcast.cluster.channels import kept_plans
from nearcast.cluster.channels.key_lookups import key_lookups
from nearcast.cluster.channels.matching import Matcher
from nearcast.cluster.channels.query_tree import parse_query
from nearcast.cluster.channels.query_validation import validate_query
from nearcast.cluster.channels.running_channel import RunningChannel
from nearcast.cluster.datasets import keyed_table
from nearcast.cluster.datasets.dataset_tables import StreamTable
from nearcast.cluster.datasets.validation import QUARANTINE, ValidatedBatch, record_times
from nearcast.cluster.datasets.views import DatasetViews
from nearcast.cluster.datasets.warehouse import Warehouse
from nearcast.cluster.datasets.watermarks import Watermarks
from nearcast.domain.channel import ChannelSpec, Parameter
from nearcast.domain.dataset import DatasetSpec

TYPES = {
    "reports": {"id": "string", "kind": "string", "n": "int", "score": "double"},
    "users": {"user": "string", "name": "string"},
    "areas": {"number": "bigint", "area": "string"},
    "scores": {"score": "double"},
}
KEYS = {"users": "user", "areas": "number", "scores": "score"}
LOOKUPS = {
    "SELECT r.id FROM reports r JOIN users u ON u.user = r.id WHERE r.kind = :kind": {"users": "id"},
    "SELECT r.id FROM reports r LEFT JOIN users u ON r.ID = u.User AND u.name <> :kind": {"users": "id"},
    "SELECT r.id FROM reports r JOIN users u ON (r.id = u.user) AND u.name = 'x'": {"users": "id"},
    "SELECT r.id FROM reports r LEFT ANTI JOIN users u ON u.user = r.kind": {"users": "kind"},
    "SELECT r.id FROM users u JOIN reports r ON u.user = r.id": {"users": "id"},
    "WITH u AS (SELECT 1 AS one) SELECT r.id FROM reports r JOIN users ON users.user = r.id": {"users": "id"},
    "SELECT reports.id FROM reports JOIN users ON users.user = reports.id": {"users": "id"},
}
NOT_LOOKUPS = {
    "records without a partner are kept": "SELECT r.id FROM reports r RIGHT JOIN users u ON u.user = r.id",
    "all are kept": "SELECT r.id FROM reports r FULL JOIN users u ON u.user = r.id",
    "the first is kept": "SELECT r.id FROM users u LEFT JOIN reports r ON u.user = r.id",
    "not its key": "SELECT r.id FROM reports r JOIN users u ON u.name = r.id",
    "or": "SELECT r.id FROM reports r JOIN users u ON u.user = r.id OR u.name = 'x'",
    "not": "SELECT r.id FROM reports r JOIN users u ON NOT u.user = r.id",
    "null equals null": "SELECT r.id FROM reports r JOIN users u ON u.user <=> r.id",
    "an expression": "SELECT r.id FROM reports r JOIN users u ON u.user = lower(r.id)",
    "other types": "SELECT r.id FROM reports r JOIN areas a ON a.number = r.n",
    "numbers that are equal in Spark only": "SELECT r.id FROM reports r JOIN scores s ON s.score = r.score",
    "twice": "SELECT r.id FROM reports r JOIN users u ON u.user = r.id JOIN users v ON v.user = u.name",
    "in a condition, too": "SELECT r.id FROM reports r JOIN users u ON u.user = r.id WHERE 1 IN (SELECT 1 FROM users)",
    "of another": "SELECT r.id FROM reports r JOIN areas a ON a.area = r.id JOIN users u ON u.user = a.area",
    "columns of other names": "SELECT r.id FROM reports r JOIN users AS u(name, user) ON u.user = r.id",
    "in a query inside": "SELECT r.id FROM reports r JOIN (SELECT user FROM users) u ON u.user = r.id",
    "records in a query inside": "SELECT r.id FROM (SELECT kind AS id FROM reports) r JOIN users u ON u.user = r.id",
    "a union": "SELECT id FROM reports UNION ALL SELECT user FROM users",
    "not said of whom": "SELECT id FROM reports JOIN users ON user = id",
    "using": "SELECT r.id FROM reports r JOIN users u USING (user)",
}


@pytest.mark.parametrize("query", LOOKUPS)
def test_a_join_by_key_is_a_lookup(query: str) -> None:
    assert key_lookups(parse_query(query).tree, "reports", KEYS, TYPES) == LOOKUPS[query]


@pytest.mark.parametrize("why", NOT_LOOKUPS)
def test_other_joins_need_the_whole_dataset(why: str) -> None:
    assert key_lookups(parse_query(NOT_LOOKUPS[why]).tree, "reports", KEYS, TYPES) == {}


REPORTS = DatasetSpec("reports", "id STRING, kind STRING, severity INT", "fed.reports")
USERS = DatasetSpec("users", "user STRING NOT NULL, name STRING", "fed.users", "user")


@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("kept_after", [2, 100])
def test_a_batch_reads_the_keys_it_needs_and_finds_the_latest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_after: int
) -> None:
    """With a kept plan in between, which reads all of the dataset, and without one."""
    monkeypatch.setattr(keyed_table, "_SENT_WITH_PLAN", 20)
    monkeypatch.setattr(keyed_table, "_LARGEST_DELTA", 10)
    monkeypatch.setattr(kept_plans, "_UNCHANGED_LOOKED_UP", kept_after)
    warehouse, views, matcher = Warehouse(str(tmp_path)), DatasetViews(spark), Matcher(spark)
    reports, users = (StreamTable(spark, spec, warehouse) for spec in (REPORTS, USERS))
    views.tables["users"] = users
    query = (
        "SELECT r.id, u.name FROM reports r LEFT JOIN users u ON u.user = r.id AND u.name <> 'n3' WHERE r.kind = :kind"
    )
    spec = ChannelSpec("named", query, (Parameter("kind", "string"),), None, "reports")
    channel = RunningChannel(validate_query(spark, spec, {"reports": REPORTS, "users": USERS}))
    assert channel.validated.lookups == {"users": "id"}
    matcher.load(channel, {kind: {"kind": kind} for kind in ("fire", "flood")})
    looked_up: list[int] = []
    of_keys = users.frame_of_keys

    def counted(keys: pa.ChunkedArray) -> object:
        frame = of_keys(keys)
        assert frame is not None
        looked_up.append(frame.count())
        return frame

    monkeypatch.setattr(users, "frame_of_keys", counted)
    rng, names, sequence, kept = random.Random(5), dict[str, str](), 0, 0

    def rename(numbers: list[int]) -> None:
        nonlocal sequence
        rows = [
            {"user": f"u{n}", "name": f"n{rng.randrange(9)}", "_sequence": sequence + i + 1, "_arrived": sequence + i}
            for i, n in enumerate(numbers)
        ]
        sequence += len(numbers)
        names.update({row["user"]: row["name"] for row in rows})
        valid = pa.Table.from_pylist(rows, users.arrow)
        times = record_times(valid, USERS)
        users.keep(ValidatedBatch(valid, QUARANTINE.empty_table(), times, sequence, 0, Watermarks()))

    rename(list(range(50)))
    users.flush()
    for step in range(9):
        if step in (1, 2, 6):
            rename([rng.randrange(60) for _ in range(4)])
        rows = [
            {"id": f"u{rng.randrange(70)}", "kind": rng.choice(["fire", "flood", "other"]), "severity": n}
            for n in range(6)
        ]
        numbered = [row | {"_sequence": 6 * step + n + 1, "_arrived": 0} for n, row in enumerate(rows)]
        found = matcher.match_new([channel], reports, pa.Table.from_pylist(numbered, reports.arrow), views)
        told = sorted((row["key"], *json.loads(row["row"]).values()) for row in found.to_pylist())
        known = {user: name for user, name in names.items() if name != "n3"}
        wanted = [(row["kind"], row["id"], known.get(row["id"])) for row in rows if row["kind"] != "other"]
        assert sorted(map(str, told)) == sorted(map(str, wanted))
        kept += bool(matcher.kept.plans)
    users.close()
    reports.close()
    assert looked_up
    assert max(looked_up) <= 6
    assert bool(kept) == (kept_after == 2)
