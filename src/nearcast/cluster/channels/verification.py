"""Compares a channel's statement once with the plain query, each subscription's values bound as arguments, on generated
rows: a rewrite that Spark accepts, but that answers differently, is refused before anybody subscribes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.query_errors import QueryError
from nearcast.cluster.channels.statement import JSON_OPTIONS, ValidatedChannel, result_frame
from nearcast.cluster.channels.time_limit import TimeLimit, TimeLimitError
from nearcast.cluster.datasets.schema import dataset_ddl, parse_ddl
from nearcast.cluster.spark_errors import is_interruption
from nearcast.domain.channel import check_values

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from nearcast.domain.dataset import DatasetSpec

__all__ = ["plain_arguments", "verify_statement"]

_ROWS, _SUBSCRIPTIONS = 24, 4
_SECONDS = 90.0
_MOST_COMPARED, _LONGEST_ROW = 2_000, 20_000
_WORDS = ("a", "b", "fire", "a%")
# Words of a query whose answer depends on which of several equal rows come first.
_TIES = (
    "limit", "offset", "first", "last", "any_value", "collect", "array_agg", "_by", "mode", "row_number", "listagg",
)  # fmt: skip
_START = datetime(2026, 1, 1, tzinfo=UTC)


def verify_statement(spark: SparkSession, channel: ValidatedChannel, datasets: Mapping[str, DatasetSpec]) -> None:
    """QueryError when the two answers differ. A query that fails for the generated rows is not compared."""
    rng = random.Random(1)
    session = spark.newSession()
    session.sql(grid.DISTANCE)
    for name in channel.datasets:
        schema = parse_ddl(dataset_ddl(datasets[name]), name)
        rows = [tuple(_value(field.dataType, field.name, n, rng) for field in schema) for n in range(_ROWS)]
        session.createDataFrame(rows, schema).createOrReplaceTempView(name)
    types = {p.name: p.type for p in channel.spec.parameters}
    drawn = [{name: _parameter(kind, rng) for name, kind in types.items()} for _ in range(_SUBSCRIPTIONS)]
    wanted = [check_values(channel.spec, row) for row in drawn]
    try:
        with TimeLimit(spark, _SECONDS):
            found = _answers(result_frame(session, channel, wanted), len(wanted))
            expected = [_plain(session, channel, types, row) for row in wanted]
    except TimeLimitError:
        reason = f"takes more than {_SECONDS:g} s for {_ROWS} records of each dataset; write it in another way"
        raise QueryError(channel.spec, reason) from None
    except Exception as error:
        if is_interruption(error):
            raise
        return  # such as a division by zero
    if sum(answer.total() for answer in found) >= _MOST_COMPARED:
        return  # there may be more
    for row, right, answer in zip(wanted, expected, found, strict=True):
        same = right == answer
        if _ties(channel.spec.query):  # which of several equal rows come first is not defined
            same = right.total() == answer.total()
        if not same:
            raise QueryError(
                channel.spec,
                f"its rewrite for all subscriptions would answer differently, for example for {row}; "
                "please report this query, and write it in another way",
            )


def _answers(frame: DataFrame, count: int) -> list[Counter[str]]:
    """The rows of each subscription. Only so many: a query may make millions of rows from a few."""
    from pyspark.sql.functions import col

    found: list[Counter[str]] = [Counter() for _ in range(count)]
    rows = frame.select("number", _shortened(col("row")).alias("row")).limit(_MOST_COMPARED)
    for row in rows.toArrow().to_pylist():
        found[row["number"]][_canonical(row["row"])] += 1
    return found


def _shortened(row: Column) -> Column:
    """A long text of JSON as its digest, which is JSON, too: the driver holds all that are compared."""
    from pyspark.sql.functions import concat, length, lit, sha2, when

    return when(length(row) > _LONGEST_ROW, concat(lit('"'), sha2(row, 256), lit('"'))).otherwise(row)


def plain_arguments(types: Mapping[str, str], row: Mapping[str, Any]) -> dict[str, Any]:
    """Values as literals of exactly the parameters' types."""
    from pyspark.sql.functions import expr, lit

    forms = {"int": "{}", "bigint": "{}L", "double": "{!r}D", "date": "DATE'{}'", "timestamp": "TIMESTAMP'{}'"}
    return {
        name: expr(forms[kind].format(row[name])) if kind in forms else lit(row[name]) for name, kind in types.items()
    }


def _plain(session: SparkSession, channel: ValidatedChannel, types: Mapping[str, str], row: Mapping[str, Any]) -> Any:
    query = channel.spec.query.strip().rstrip(";")
    frame = session.sql(query, args=plain_arguments(types, row))
    frame = frame.toDF(*(label for label, _ in channel.columns))
    from pyspark.sql.functions import col, struct, to_json

    columns = [col("`" + name.replace("`", "``") + "`") for name in frame.columns]
    rows = frame.select(_shortened(to_json(struct(*columns), JSON_OPTIONS)).alias("row")).limit(_MOST_COMPARED)
    return Counter(_canonical(text) for text in rows.toArrow()["row"].to_pylist())


def _canonical(text: str) -> str:
    """Sums of floats depend on the order of their rows: compared to ten digits."""
    return json.dumps(json.loads(text, parse_float=lambda number: float(f"{float(number):.10g}")), sort_keys=True)


def _ties(query: str) -> bool:
    lowered = query.lower()
    return any(word in lowered for word in _TIES)


def _value(kind: Any, name: str, n: int, rng: random.Random) -> Any:
    """A value of a type, sometimes null; coordinates within some kilometres."""
    what = kind.typeName()
    if name == "_sequence":
        return n
    if what == "struct":
        return tuple(_value(field.dataType, field.name, n, rng) for field in kind)
    if what == "array":
        return [_value(kind.elementType, "", n, rng) for _ in range(rng.randrange(3))]
    if what == "map":
        return {_value(kind.keyType, "key", n, rng): _value(kind.valueType, "", n, rng)}
    if rng.random() < 0.1 and name != "key":
        return None
    if what in ("string", "char", "varchar"):
        return rng.choice(_WORDS[:3])
    if what in ("double", "float"):
        return rng.uniform(0.0, 0.05)
    if what in ("integer", "long", "short", "byte"):
        return rng.randrange(-2, 6)
    if what == "decimal":
        from decimal import Decimal

        return Decimal(rng.randrange(9))
    if what == "boolean":
        return rng.random() < 0.5
    if what == "binary":
        return rng.randbytes(3)
    if what in ("timestamp", "timestamp_ntz"):
        moment = _START + timedelta(seconds=rng.randrange(90_000), microseconds=rng.randrange(10**6))
        return moment if what == "timestamp" else moment.replace(tzinfo=None)
    if what == "date":
        return date(2026, 1, rng.randrange(1, 4))
    return None


def _parameter(kind: str, rng: random.Random) -> Any:
    if kind == "string":
        return rng.choice(_WORDS)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "double":
        return rng.choice((0.02, 0.04, 500.0, 3000.0))
    if kind == "date":
        return f"2026-01-0{rng.randrange(1, 4)}"
    if kind == "timestamp":
        return (_START + timedelta(seconds=rng.randrange(90_000))).isoformat()
    return rng.randrange(-1, 5)
