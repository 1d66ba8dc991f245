"""The SQL of a query that is asked once: views instead of datasets, and what is refused before Spark sees it."""

from __future__ import annotations

import pytest

from nearcast.cluster.ad_hoc_query import ad_hoc_sql
from nearcast.errors import InputError


def sql(text: str) -> str:
    return ad_hoc_sql(text, {"reports", "shelters"}, lambda name: f"_all_{name}")


def test_datasets_become_views_and_keep_their_names() -> None:
    assert sql("SELECT kind, count(*) FROM Reports GROUP BY kind;") == (
        "SELECT kind, COUNT(*) FROM _all_reports AS reports GROUP BY kind"
    )
    assert sql("WITH f AS (SELECT * FROM reports) SELECT f.id FROM f JOIN shelters s ON s.id = f.id") == (
        "SELECT f.id FROM (SELECT * FROM _all_reports AS reports) AS f JOIN _all_shelters AS s ON s.id = f.id"
    )
    assert "_all_reports AS reports" in sql(
        "SELECT reports.id FROM reports WHERE reports.id IN (SELECT id FROM reports)"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SELECT * FROM people", "there is no dataset 'people'; there are: reports, shelters"),
        ("SELECT * FROM _all_reports", "there is no dataset '_all_reports'"),
        ("SELECT 1", "the query reads no dataset"),
        ("SELECT * FROM reports WHERE kind = :kind", "the query has a parameter, :kind; write a value instead"),
        ("DROP TABLE reports", "the query is refused: one SELECT is needed"),
        ("SELECT * FROM reports; SELECT * FROM reports", "the query is refused: one SELECT is needed"),
        ("SELECT java_method('java.lang.System', 'getenv') FROM reports", "the query is refused: "),
        ("SELECT * FROM parquet.`/etc`", "the query is refused: "),
        ("SELECT FROM WHERE (", "the query is not understood: "),
        (" SELECT id\nFORM reports r", "Unexpected token. Line 2, column 6"),
        ("", "the query is refused: one SELECT is needed"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=r"the query|there is no") as refused:
        sql(text)
    assert reason in str(refused.value)
