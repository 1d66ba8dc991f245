"""What a channel's query may not contain, found before Spark sees it."""

from __future__ import annotations

import pytest
from sqlglot.errors import SqlglotError

from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.cluster.channels.query_tree import parse_query


@pytest.mark.parametrize(
    "query",
    [
        "SELECT java_method('java.lang.System', 'exit', 3) FROM reports",
        "SELECT reflect('java.lang.System', 'getenv', 'HOME') FROM reports",
        "SELECT try_reflect('java.lang.System', 'getenv') FROM reports",
        "SELECT xpath_string(r.id, 'a') FROM reports r",
        "SELECT * FROM parquet.`/data`",
        "SELECT (SELECT max(value) FROM text.`/etc/passwd`) FROM reports",
        "SELECT id FROM reports WHERE EXISTS (SELECT 1 FROM spark_catalog.default.t)",
        "SELECT * FROM range(1000000000000)",
        "SELECT * FROM read_files('/etc')",
        "SELECT TRANSFORM(id) USING 'sh' FROM reports",
        "SELECT input_file_name(), current_user(), version() FROM reports",
        "SELECT rand() FROM reports",
        "SELECT id FROM reports TABLESAMPLE (10 PERCENT)",
        "SELECT TIMESTAMP'now' FROM reports",
        "SET spark.sql.ansi.enabled = false",
        "CREATE TEMPORARY FUNCTION f AS 'x'",
        "SELECT 1; DROP TABLE reports",
        "SELECT id FROM IDENTIFIER(:name)",
        "WITH RECURSIVE q AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM q) SELECT n FROM q, reports",
        "SELECT " + " + ".join(["id"] * 3000) + " FROM reports",
        "SELECT a.id FROM reports a" + " CROSS JOIN reports" * 13,
        "WITH q0 AS (SELECT id FROM reports), "
        + ", ".join(f"q{n} AS (SELECT * FROM q{n - 1} UNION ALL SELECT * FROM q{n - 1})" for n in range(1, 25))
        + " SELECT id FROM q24",
    ],
)
def test_what_could_hurt_is_refused(query: str) -> None:
    with pytest.raises((PolicyError, SqlglotError, RecursionError)):
        parse_query(query)


def test_parameters_are_found_outside_of_texts_and_comments() -> None:
    query = "SELECT ':no', x::int -- :not\n FROM r WHERE a = :kind /* :nor */ AND b > :least AND c = :kind"
    parsed = parse_query(query)
    assert list(parsed.parameters) == ["kind", "least"]
    assert query[parsed.parameters["kind"] :].startswith(":kind")


def test_only_queries_without_the_time_are_timeless() -> None:
    assert parse_query("SELECT id FROM r WHERE a = :now").timeless
    for moment in ("current_timestamp()", "now()", "current_date", "unix_timestamp()", "curdate()"):
        assert not parse_query(f"SELECT id FROM r WHERE a < {moment}").timeless, moment
