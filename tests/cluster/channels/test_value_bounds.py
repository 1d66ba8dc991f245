"""Queries that would take the driver's memory or time while they are planned or run. No Spark runs."""

from __future__ import annotations

import contextlib
import time

import pytest

from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.cluster.channels.query_tree import parse_query
from nearcast.cluster.channels.text_patterns import check_like_values, like_parameters
from nearcast.errors import InputError


def nested(projection: str, times: int) -> str:
    query = "SELECT r.id, r.name AS a FROM reports r"
    for _ in range(times):
        query = f"SELECT q.id, {projection} AS a FROM ({query}) q"
    return query


LARGE = [
    "repeat('x', 2147483647)",
    "repeat(repeat('x', 10000), 10000)",
    "repeat(r.name, r.severity)",
    "repeat(r.name, :times)",
    "repeat('x', 1000 * 1000000)",
    "space(2147483647)",
    "rpad('x', 2147483647, 'y')",
    "lpad(r.name, r.severity, 'y')",
    "array_repeat(1, 2147483000)",
    "array_insert(array(1), 2000000000, 5)",
    "format_number(1.5, 2000000000)",
    "printf('%2000000000d', 1)",
    "printf(r.name, 1)",
    "round(1.5, 2000000000)",
    "bround(1.5, -2000000000)",
    "ceil(1.5, 2000000000)",
    "replace(replace(replace(r.name, 'x', r.name), 'x', r.name), 'x', r.name)",
    "regexp_replace(regexp_replace(repeat('x', 10000), 'x', r.name), 'x', r.name)",
    "array_join(array_repeat(r.name, 10000), r.name)",
    "levenshtein(repeat('a', 10000), repeat('b', 10000))",
    "aggregate(array(1, 2), 'x', (acc, x) -> concat(acc, acc))",
    "aggregate(r.tags, r.name, (acc, x) -> acc || x || acc)",
    "aggregate(r.tags, 0, (a, x) -> a + aggregate(r.tags, 0, (b, y) -> b + aggregate(r.tags, 0, (c, z) -> c + 1)))",
    "transform(r.tags, x -> transform(r.tags, y -> transform(r.tags, z -> x + y + z)))",
    "transform(r.tags, x -> repeat(r.name, 10000))",
    "hex(hex(hex(hex(hex(hex(hex(r.name)))))))",
    "approx_count_distinct(r.id, 0.00001)",
    "histogram_numeric(r.severity, 2000000000)",
    "approx_percentile(r.severity, 0.5, 2000000000)",
    "window(r.at, '1 day', '1 microsecond')",
]


@pytest.mark.parametrize("expression", LARGE)
def test_what_may_become_too_large_is_refused(expression: str) -> None:
    with pytest.raises(PolicyError):
        parse_query(f"SELECT r.id, {expression} AS n FROM reports r")


@pytest.mark.parametrize(
    "query",
    [
        nested("concat(q.a, q.a)", 20),
        nested("q.a || q.a", 20),
        nested("array(q.a, q.a, q.a)", 15),
        nested("concat_ws(',', q.a, q.a)", 20),
        "SELECT r.id, count(*) AS n FROM reports r GROUP BY CUBE(r.id, r.a, r.b, r.c, r.d, r.e, r.f)",
        "SELECT r.id, count(*) AS n FROM reports r GROUP BY CUBE(r.id, r.a, r.b), CUBE(r.c, r.d, r.e, r.f)",
        "SELECT r.id, count(*) AS n FROM reports r GROUP BY r.id, r.a, r.b, r.c, r.d, r.e, r.f WITH CUBE",
        "SELECT r.id FROM reports r ORDER BY r.id LIMIT 2000000000",
        "SELECT r.id FROM reports r WHERE length(repeat('x', 2147483647)) > 1",
        "SELECT r.id FROM reports r JOIN zones z ON z.id = length(space(2147483647))",
        "SELECT r.id, (SELECT max(repeat(z.name, 2147483647)) FROM zones z) AS n FROM reports r",
        "SELECT r.id, t FROM reports r LATERAL VIEW explode(array_repeat(1, 2147483647)) e AS t",
        "WITH big AS (SELECT repeat(r.name, 10000) AS a FROM reports r) SELECT repeat(big.a, 10000) AS b FROM big",
        "SELECT 1 AS n FROM reports r WHERE " + "(" * 9_000 + "1" + ")" * 9_000 + " = 1",
        "SELECT " + "x" * 20_001 + " FROM reports r",
        "SELECT r.id FROM reports r" + " UNION ALL SELECT r.id FROM reports r" * 500,
    ],
    ids=range(16),
)
def test_queries_that_grow_are_refused(query: str) -> None:
    with pytest.raises((PolicyError, RecursionError)):
        parse_query(query)


@pytest.mark.parametrize(
    "expression",
    [
        "repeat('x', 10)", "rpad(r.name, 40, ' ')", "lpad(r.name, 8, '0')", "round(r.lat, 2)",
        "format_number(r.lat, 3)",
        "replace(replace(r.name, '-', ' '), '_', ' ')", "regexp_replace(r.name, '[^a-z]', '')", "upper(r.name)",
        "concat(r.name, ' in ', r.area, ': ', cast(r.severity AS string))", "to_json(named_struct('a', r.name))",
        "aggregate(r.tags, 0, (acc, x) -> acc + length(x))", "aggregate(r.tags, '', (acc, x) -> concat(acc, ',', x))",
        "aggregate(r.tags, 0, (acc, x) -> CASE WHEN acc > x THEN acc ELSE x END)", "array_join(r.tags, ', ')",
        "transform(transform(r.tags, x -> upper(x)), x -> concat(x, '!'))",
        "filter(r.tags, x -> exists(r.others, y -> y = x))",
        "CASE WHEN r.severity > 3 THEN 'high' WHEN r.severity > 1 THEN 'low' ELSE r.name END", "window(r.at, '1 hour')",
        "levenshtein(r.name, :name)", "distance(r.lat, r.lon, :lat, :lon) / 1000", "hex(md5(r.name))",
        "split(r.name, ',')",
        "r.name LIKE 'a%b%'", "r.name LIKE :name", "r.name LIKE concat(:name, '%')", "r.name NOT LIKE '%fire%'",
        "r.name RLIKE '^[a-z]+-[0-9]{1,4}$'", "regexp_extract(r.name, '(\\\\d+)-(\\\\d+)', 1)",
        "r.name RLIKE '(fire|flood) in'",
        "collect_list(r.name)", "printf('%5.2f of %s', r.lat, r.name)", "array_repeat(r.name, 3)",
    ],
)  # fmt: skip
def test_what_channels_compute_is_allowed(expression: str) -> None:
    parse_query(f"SELECT r.id, {expression} AS n FROM reports r")


@pytest.mark.parametrize(
    "condition",
    [
        "r.name RLIKE '(a+)+$'", "r.name RLIKE '(a|aa)*b'", "r.name RLIKE '((a*)b*)*c'",
        "r.name RLIKE '(a{1,500}){1,500}b'",
        "r.name RLIKE '.*.*.*.*b'", "r.name RLIKE '(x)\\\\1'", "r.name RLIKE '(?=a).*'", "r.name RLIKE r.pattern",
        "r.name RLIKE :pattern", "regexp_like(r.name, '([a-z]+)*1')", "regexp(r.name, '(a?){60}a{60}')",
        "size(split(r.name, '(,+)+')) > 1", "r.name LIKE '%a%a%a%b'", "r.name LIKE r.pattern",
        "r.name ILIKE '%a%b%c%d'",
        "r.name LIKE ANY ('a', '%a%a%a%b')", "r.name LIKE repeat('%a', 50)", "regexp_count(r.name, '(a+)+b') > 0",
        "r.name LIKE '%a%a%a%b' ESCAPE '!'",
    ],
)  # fmt: skip
def test_patterns_that_may_take_for_ever_are_refused(condition: str) -> None:
    with pytest.raises(PolicyError):
        parse_query(f"SELECT r.id FROM reports r WHERE {condition}")


def test_values_of_patterns_are_checked_when_somebody_subscribes() -> None:
    tree = parse_query(
        "SELECT r.id FROM reports r WHERE r.a LIKE :a AND r.b LIKE concat('%', :b, '%') AND r.c = :c"
    ).tree
    parameters = like_parameters(tree)
    assert parameters == {"a": True, "b": False}
    check_like_values(parameters, {"a": "%fire%in%", "b": "fire", "c": "%%%%%%"})
    for values in ({"a": "%a%a%a%a%b", "b": ""}, {"a": "", "b": "a%"}):
        with pytest.raises(InputError, match="%"):
            check_like_values(parameters, values)


@pytest.mark.parametrize(
    "wrap",
    [
        "CASE WHEN id = 'a' THEN {} ELSE 'b' END", "(SELECT {} AS a FROM reports)", "EXISTS (SELECT {} FROM reports)",
        "struct({})", "int({})", "date({})", "float({})", "replace('a', 'b', {})", "upper({})", "({})",
        "transform(array(1), y -> {})", "aggregate(array(1), 0, (acc, y) -> acc + {})", "cast({} AS string)",
    ],
)  # fmt: skip
def test_nesting_does_not_double_the_time_that_judging_takes(wrap: str) -> None:
    """Of 125 characters, `int(int(…`, sqlglot's parser would not have come to an end; of nested CASE the bounds."""
    text = "id"
    for _ in range(22):
        text = wrap.format(text)
    began = time.process_time()
    with contextlib.suppress(PolicyError):
        parse_query(f"SELECT {text} AS a FROM reports")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM reports LATERAL VIEW explode(array_repeat(1, 9000)) t AS a LATERAL VIEW "
        "explode(array_repeat(1, 9000)) u AS b",
        "SELECT explode(array_repeat(1, 9000)) AS b FROM (SELECT explode(array_repeat(1, 9000)) AS a FROM reports) q",
        "SELECT collect_list(a) AS a FROM reports LATERAL VIEW explode(x) t AS a LATERAL VIEW explode(y) u AS b "
        "LATERAL VIEW explode(z) v AS c",
    ],
)
def test_one_row_becomes_no_more_than_a_million(query: str) -> None:
    """Nothing limits what an aggregate collects of them."""
    with pytest.raises(PolicyError, match=r"makes \d+ rows of one; at most 1000000 are allowed"):
        parse_query(query)
    parse_query("SELECT a FROM reports LATERAL VIEW explode(x) t AS a LATERAL VIEW explode(y) u AS b")
