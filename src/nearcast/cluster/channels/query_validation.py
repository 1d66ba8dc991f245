"""Validates the query of a channel with Spark's own parser and optimizer; an error shows its place in the text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.rewrite import SUBSCRIPTIONS, RewriteOptions, parameters_used, rewrite
from nearcast.cluster.channels.tokens import tables, tokenize
from nearcast.cluster.datasets.schema import dataset_ddl, parse_ddl
from nearcast.cluster.spark_errors import error_line
from nearcast.domain.channel import ChannelSpec, check_channel
from nearcast.domain.dataset import DatasetSpec
from nearcast.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["QueryError", "ValidatedChannel", "validate_query"]

_CROSS = ("CartesianProduct", "BroadcastNestedLoopJoin")
# The operators of a continuous query: none whose result depends on which records are in one batch.
_ROW_BY_ROW = {
    "Project", "Filter", "Join", "LateralJoin", "SubqueryAlias", "View", "Generate", "LogicalRDD", "LocalRelation",
    "OneRowRelation", "ResolvedHint", "Relation",
}  # fmt: skip


class QueryError(InputError):
    """A query that cannot be that of a channel. offset: of the error in the text, if known."""

    def __init__(self, channel: str, text: str, offset: int | None, reason: str) -> None:
        self.offset = offset
        if offset is None:
            super().__init__(f"channel {channel}: {reason}")
            return
        line = text.count("\n", 0, offset) + 1
        column = offset - (text.rfind("\n", 0, offset) + 1) + 1
        shown = text.splitlines()[line - 1]
        super().__init__(
            f"channel {channel}: line {line}, column {column}: {reason}\n  {shown}\n  {' ' * (column - 1)}^"
        )


@dataclass(frozen=True)
class ValidatedChannel:
    """A channel that can run. how: its query is rewritten. datasets: it reads. columns: of its results."""

    spec: ChannelSpec
    how: RewriteOptions
    datasets: tuple[str, ...]
    columns: tuple[str, ...]


def validate_query(spark: SparkSession, channel: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> ValidatedChannel:
    """Validate a channel; QueryError or InputError says what is wrong and where."""
    check_channel(channel)
    session = spark.newSession()
    session.sql(grid.DISTANCE)
    query = channel.query.strip().rstrip(";")
    used = _check_parameters(channel, query)
    types = {parameter.name: parameter.type for parameter in channel.parameters}
    _parse(session, channel, query, types)
    named = _check_tables(channel, query, datasets)
    for name in named:
        _empty_view(session, name, dataset_ddl(datasets[name]))
    analysed = _analyse(session, channel, query, types)
    columns = tuple(analysed.columns)
    for n, column in enumerate(columns):
        if column.lower() in [other.lower() for other in columns[:n]]:
            raise QueryError(channel.name, query, None, f"two columns are named {column!r}; rename one with AS")
    _check_casts(channel, query, analysed, types, used)
    _check_new(channel, query, named, datasets, analysed)
    columns_of = [f"_p_{n} {kind}, _l_{n} BIGINT, _h_{n} DOUBLE" for n, kind in types.items()]
    _empty_view(session, SUBSCRIPTIONS, ", ".join(["_key STRING", *columns_of]))
    how = _choose(session, channel, query, types, analysed)
    return ValidatedChannel(channel, how, tuple(named), columns)


def _check_parameters(channel: ChannelSpec, query: str) -> dict[str, int]:
    used = parameters_used(query)
    declared = [parameter.name for parameter in channel.parameters]
    for name, offset in used.items():
        if name not in declared:
            have = ", ".join(declared) or "none"
            raise QueryError(channel.name, query, offset, f"parameter :{name} is not declared; declared: {have}")
    for name in declared:
        if name not in used:
            raise QueryError(channel.name, query, None, f"parameter {name!r} is declared, but the query has no :{name}")
    return used


def _check_tables(channel: ChannelSpec, query: str, datasets: Mapping[str, DatasetSpec]) -> list[str]:
    named: list[str] = []
    for table in tables(tokenize(query)):
        if not table.name:
            continue
        if table.name not in datasets:
            if re.search(rf"\b{table.name}\s+AS\s*\(", query, re.IGNORECASE):
                continue  # a WITH of the query's own
            have = ", ".join(sorted(datasets)) or "none"
            raise QueryError(channel.name, query, table.start, f"there is no dataset {table.name!r}; there are: {have}")
        if table.name not in named:
            named.append(table.name)
    if not named:
        raise QueryError(channel.name, query, None, "the query reads no dataset")
    return named


def _parse(session: SparkSession, channel: ChannelSpec, query: str, types: Mapping[str, str]) -> None:
    """Refuse what is not SQL before any other check."""
    from pyspark.errors import ParseException

    text, places = _with_nulls(query, types)
    try:
        session._jsparkSession.sessionState().sqlParser().parsePlan(text)
    except ParseException as error:
        _explain(channel, query, error, places)


def _analyse(session: SparkSession, channel: ChannelSpec, query: str, types: Mapping[str, str]) -> DataFrame:
    """Let Spark resolve names and types."""
    from pyspark.errors import AnalysisException

    text, places = _with_nulls(query, types)
    try:
        return session.sql(text)
    except AnalysisException as error:
        _explain(channel, query, error, places)


def _with_nulls(query: str, types: Mapping[str, str]) -> tuple[str, list[tuple[int, int]]]:
    """The query with a typed null for each parameter; (offset, growth) of each replacement."""
    places: list[tuple[int, int]] = []
    pieces, last = [], 0
    for token in tokenize(query):
        if token.kind == "parameter":
            value = f"CAST(NULL AS {types[token.text[1:]]})"
            pieces += [query[last : token.start], value]
            places.append((token.start, len(value) - len(token.text)))
            last = token.end
    return "".join([*pieces, query[last:]]), places


def _explain(channel: ChannelSpec, query: str, error: Any, places: Sequence[tuple[int, int]]) -> NoReturn:
    message = re.sub(r"; line \d+ pos \d+\s*;?$", "", error_line(error)).rstrip(";. ")
    offset = _place(str(error), error)
    if offset is not None:
        for start, longer in places:
            if offset > start + longer:
                offset -= longer
            elif offset > start:
                offset = start
        offset = min(max(offset, 0), max(len(query) - 1, 0))
    raise QueryError(channel.name, query, offset, message) from None


def _place(text: str, error: Any) -> int | None:
    """The offset of Spark's error: from its context, else from `line x pos y` in its text."""
    try:
        for context in error.getQueryContext():
            if context.contextType().name == "SQL":
                return int(context.startIndex())
    except Exception:  # the contexts of some errors cannot be read; the text has the place, too
        pass
    sql = re.search(r"\(line (\d+), pos (\d+)\)|line (\d+),? pos (\d+)", text)
    if sql is None:
        return None
    line, column = (int(sql[1]), int(sql[2])) if sql[1] else (int(sql[3]), int(sql[4]))
    body = text.partition("== SQL ==\n")[2]
    if body:
        lines = [piece for piece in body.splitlines() if not re.fullmatch(r"-*\^+", piece)]
        return sum(len(piece) + 1 for piece in lines[: line - 1]) + column
    return column if line == 1 else None


def _check_casts(
    channel: ChannelSpec, query: str, analysed: DataFrame, types: Mapping[str, str], used: Mapping[str, int]
) -> None:
    """Spark would cast a text that is compared with a number, and fail at run time for a text that is no number."""
    plan = analysed._jdf.queryExecution().analyzed().toString()
    texts = [name for name, kind in types.items() if kind == "string"]
    found = re.search(r"cast\(cast\(null as string\) as (int|bigint|double|float|boolean|timestamp|date)\)", plan)
    if found and texts:
        offset = used[texts[0]] if len(texts) == 1 else None
        which = f":{texts[0]}" if len(texts) == 1 else f"one of {', '.join(':' + name for name in texts)}"
        raise QueryError(channel.name, query, offset, f"{which} is string but is used as {found[1]}")
    mixed = re.search(r"cast\((\w+)#\d+ as (int|bigint|double|float|boolean)\) (?:=|<|>|<=|>=) ", plan)
    if mixed and re.search(rf"\b{mixed[1]}#\d+ *[^L\d]", plan):
        kinds = {field.name: field.dataType.simpleString() for name in _strings(channel, analysed) for field in name}
        if kinds.get(mixed[1]) == "string":
            raise QueryError(channel.name, query, None, f"column {mixed[1]} is string but is compared with {mixed[2]}")


def _strings(channel: ChannelSpec, analysed: DataFrame) -> list[Any]:
    session = analysed.sparkSession
    return [session.table(table.name).schema.fields for table in tables(tokenize(channel.query)) if table.name]


def _check_new(
    channel: ChannelSpec, query: str, named: Sequence[str], datasets: Mapping[str, DatasetSpec], analysed: DataFrame
) -> None:
    if channel.new and (channel.new not in named or datasets[channel.new].static):
        streams = ", ".join(name for name in named if not datasets[name].static) or "none"
        raise QueryError(
            channel.name, query, None, f"new is {channel.new!r}; allowed are the stream datasets it reads: {streams}"
        )
    if not channel.continuous:
        return
    if not channel.new:
        raise QueryError(channel.name, query, None, "a continuous channel must read a stream dataset in its FROM")
    if len([t for t in tables(tokenize(query)) if t.name == channel.new]) > 1:
        raise QueryError(
            channel.name, query, None, f"a continuous channel can read {channel.new} once: only new records are seen"
        )
    for node in _nodes(analysed._jdf.queryExecution().analyzed()):
        if node not in _ROW_BY_ROW:
            raise QueryError(
                channel.name, query, None,
                f"{node.lower()} in a continuous channel would depend on which records are in one batch; give the "
                f"channel a period, or group by the record ({channel.new}._sequence)",
            )  # fmt: skip


def _nodes(plan: Any) -> list[str]:
    """The operators of a plan. An aggregate per record counts as a projection."""
    name = str(plan.nodeName()).split(" ")[0].split("(")[0]
    if name == "Aggregate" and "_sequence#" in plan.groupingExpressions().toString():
        name = "Project"
    if name in ("LogicalRDD", "View"):
        return [name]
    children = plan.children()
    return [name] + [found for n in range(children.size()) for found in _nodes(children.apply(n))]


def _joins_first(plan: Any) -> bool:
    """Whether the outermost SELECT only filters and projects its FROM."""
    name = str(plan.nodeName()).split(" ")[0]
    if name in ("Project", "Filter"):
        return _joins_first(plan.children().apply(0))
    return name in ("Join", "LateralJoin", "SubqueryAlias", "View")


def _choose(
    session: SparkSession, channel: ChannelSpec, query: str, types: Mapping[str, str], analysed: DataFrame
) -> RewriteOptions:
    """The first rewrite of the query for all subscriptions that needs no cross join."""
    from pyspark.errors import PySparkException

    simple = _joins_first(analysed._jdf.queryExecution().analyzed())
    values = {name: [1.0, 1000.0] if kind == "double" else [1, 1000] for name, kind in types.items()}
    reasons: list[str] = []
    nested_loop: RewriteOptions | None = None
    for how in (RewriteOptions(True), RewriteOptions()):
        if how.inline and not simple:
            continue
        try:
            text = rewrite(query, how, view_of=lambda name: name, values=values)
            plan = session.sql(text)._jdf.queryExecution().executedPlan()
        except PySparkException as error:
            reasons.append(error_line(error))
            continue
        if not any(word in plan.toString() for word in _CROSS):
            return how
        if nested_loop is None and _compares_subscriptions_only(plan):
            nested_loop = how
        reasons.append("")
    if nested_loop is not None:
        return nested_loop
    if all(reasons):
        raise QueryError(channel.name, query, None, f"cannot be answered for all subscriptions at once: {reasons[0]}")
    raise QueryError(
        channel.name, query, None,
        "would compare every record of a dataset with every record of another (a cross join). "
        "Join them by an equality, or by distance(a.lat, a.lon, b.lat, b.lon) <= a number or parameter, with AND",
    )  # fmt: skip


def _compares_subscriptions_only(plan: Any) -> bool:
    """Whether each nested loop of a plan has the subscriptions on one side: `r.severity > :least` and the like."""
    children = [plan.children().apply(n) for n in range(plan.children().size())]
    if str(plan.nodeName()).startswith(_CROSS):
        subscribed = [child for child in children if "_key#" in child.toString()]
        alone = any(child.collectLeaves().size() == 1 for child in subscribed)
        if not subscribed or not (alone or plan.condition().isDefined()):
            return False
    return all(_compares_subscriptions_only(child) for child in children)


def _empty_view(session: SparkSession, name: str, ddl: str) -> None:
    """An empty view that the optimizer does not know to be empty, so that it plans as if there were rows."""
    schema = parse_ddl(ddl, name)
    session.createDataFrame(session.sparkContext.emptyRDD(), schema).createOrReplaceTempView(name)
