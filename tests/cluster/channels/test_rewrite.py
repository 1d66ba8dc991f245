"""Parameters, tables and predicates of a query, and its rewrite for all subscriptions. Spark is not needed."""

from __future__ import annotations

import pytest

from nearcast.cluster.channels.rewrite import RewriteOptions, parameters_used, rewrite
from nearcast.cluster.channels.tokens import predicates, tables, tokenize


def test_parameters_are_found_outside_of_texts_and_comments() -> None:
    query = "SELECT ':no', x::int -- :not\n FROM r WHERE a = :kind /* :nor */ AND b > :least AND c = :kind"
    assert list(parameters_used(query)) == ["kind", "least"]
    assert query[parameters_used(query)["kind"] :].startswith(":kind")


def test_tables_of_all_blocks_are_found_with_their_aliases() -> None:
    query = """SELECT extract(year FROM r.at), (SELECT max(x) FROM inner_t) FROM reports AS r, shelters
        LEFT JOIN (SELECT a FROM deep d) q ON q.a = r.a JOIN `users` u USING (id) WHERE r.x IN (SELECT y FROM other)"""
    found = {(t.name, t.alias): t.outer for t in tables(tokenize(query))}
    assert found == {
        ("inner_t", "inner_t"): False, ("reports", "r"): False, ("shelters", "shelters"): False, ("", "q"): True,
        ("deep", "d"): False, ("users", "u"): False, ("other", "other"): False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("where", "count"),
    [("a = 1 AND b = 2", 2), ("a BETWEEN 1 AND 2 AND b = 3", 2), ("a = 1 OR b = 2", 1), ("(a = 1 OR b = 2) AND c", 2)],
)
def test_predicates_are_split_at_and_only(where: str, count: int) -> None:
    assert len(predicates(tokenize(f"SELECT 1 FROM t WHERE {where} ORDER BY x"))) == count


PLAIN = RewriteOptions()


def write(query: str, how: RewriteOptions = PLAIN, **values: list[float]) -> str:
    return rewrite(query, how, view_of=lambda name: f"v_{name}", values=values)


def test_an_equality_parameter_becomes_a_column_of_the_subscription_table() -> None:
    text = write("SELECT r.id FROM reports r WHERE r.kind = :kind")
    assert text == (
        "SELECT _p._key AS _subscription, _q.* FROM _subscriptions AS _p JOIN LATERAL "
        "(SELECT r.id FROM v_reports r WHERE r.kind = _p._p_kind) AS _q"
    )
    inline = write("SELECT id FROM reports WHERE kind = :kind", RewriteOptions(inline=True))
    assert inline == (
        "SELECT _p._key AS _subscription, id FROM _subscriptions AS _p CROSS JOIN v_reports AS reports "
        "WHERE kind = _p._p_kind"
    )


def test_a_radius_becomes_an_equality_of_cells_only_where_copies_do_not_change_the_result() -> None:
    near = "distance(r.lat, r.lon, :lat, :lon) <= :radius"
    assert "explode(" in write(f"SELECT r.id FROM reports r WHERE {near}", radius=[500.0])
    assert "explode(" in write(f"SELECT r.id FROM reports r WHERE :radius >= {near[:-11]}", radius=[500.0])
    assert "explode(" not in write(f"SELECT r.id FROM reports r WHERE {near} OR r.x = 1", radius=[500.0])
    assert "explode(" not in write(f"SELECT r.id FROM reports r WHERE NOT {near}", radius=[500.0])
    assert "explode(" not in write(f"SELECT r.id, {near} AS close FROM reports r", radius=[500.0])
    # The side that a LEFT JOIN keeps must not be copied, the other one may.
    left = "SELECT r.id FROM reports r LEFT JOIN shelters s ON distance(r.lat, r.lon, s.lat, s.lon) <= 500"
    assert "FROM v_shelters)" in write(left)
    assert "FROM v_reports r" in write(left)
    assert "explode(" not in write(left.replace("LEFT", "RIGHT"))
