"""Validates the query of a channel: its tree by the whitelist, its meaning by Spark. An error shows its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.batch_dependence import check_batches
from nearcast.cluster.channels.disjunctions import split_disjunction
from nearcast.cluster.channels.key_lookups import key_lookups
from nearcast.cluster.channels.query_errors import located, spark_refusal
from nearcast.cluster.channels.query_policy import NotUnderstoodError, PolicyError
from nearcast.cluster.channels.query_tree import QueryTree, parse_query, to_sql
from nearcast.cluster.channels.rewrite import Rewriter, UnsupportedError
from nearcast.cluster.channels.statement import (
    Statement,
    ValidatedChannel,
    empty_view,
    free_prefix,
    result_sql,
    subscription_ddl,
)
from nearcast.cluster.channels.text_patterns import like_parameters
from nearcast.cluster.datasets.schema import dataset_ddl
from nearcast.cluster.spark_errors import error_line
from nearcast.domain.channel import ChannelSpec, check_channel
from nearcast.domain.dataset import DatasetSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["first_stream", "validate_query"]

_CROSS = ("CartesianProduct", "BroadcastNestedLoopJoin")
_SAMPLES = {
    "int": "7", "bigint": "7L", "double": "7.5D", "boolean": "true", "date": "DATE'2001-02-03'",
    "timestamp": "TIMESTAMP'2001-02-03 04:05:06Z'",
}  # fmt: skip


def first_stream(query: str, datasets: Mapping[str, DatasetSpec]) -> str:
    """The first stream dataset that a query reads; empty when there is none, or when it cannot be parsed."""
    try:
        named = parse_query(query).datasets
    except PolicyError:
        return ""
    return next((name for name in named if name in datasets and not datasets[name].static), "")


def validate_query(spark: SparkSession, channel: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> ValidatedChannel:
    """Validate a channel; QueryError or InputError says what is wrong and where."""
    check_channel(channel)
    with located(channel):
        return _validated(spark.newSession(), channel, datasets)


def _validated(session: SparkSession, channel: ChannelSpec, datasets: Mapping[str, DatasetSpec]) -> ValidatedChannel:
    query = _parsed(session, channel.query)
    _check_parameters(channel, query)
    _check_datasets(query, datasets)
    session.sql(grid.DISTANCE)
    for name in query.datasets:
        empty_view(session, name, dataset_ddl(datasets[name]))
    types = {parameter.name: parameter.type for parameter in channel.parameters}
    analysed = _analysed(session, query, types)
    _check_casts(query, analysed, types)
    _check_new(channel, query, datasets)
    _check_faithful(session, query, types, analysed)
    tree, columns = _named_columns(query, analysed.columns)
    prefix = free_prefix(" ".join([query.text, *(datasets[name].schema for name in query.datasets)]))
    known = {name: [field.lower() for field in session.table(name).columns] for name in query.datasets}
    rewriter = Rewriter(prefix, known, types, partial(_output_columns, session, types))
    statement = _split(rewriter, tree) or rewriter.statement(tree)
    likes, lookups = like_parameters(query.tree), _lookups(session, channel, query, datasets)
    validated = ValidatedChannel(channel, statement, query.datasets, columns, query.timeless, likes, lookups)
    _check_plan(session, validated)
    return validated


def _lookups(
    session: SparkSession, channel: ChannelSpec, query: QueryTree, datasets: Mapping[str, DatasetSpec]
) -> dict[str, str]:
    if not channel.continuous:
        return {}
    fields = {name: {field.name.lower(): field for field in session.table(name).schema} for name in query.datasets}
    types = {name: {lower: f.dataType.simpleString() for lower, f in of.items()} for name, of in fields.items()}
    keys = {name: spec.key.lower() for name in query.datasets if (spec := datasets[name]).key and not spec.static}
    found = key_lookups(query.tree, channel.new, keys, types)
    return {name: fields[channel.new][column].name for name, column in found.items()}


def _split(rewriter: Rewriter, tree: exp.Expr) -> Statement | None:
    """The statement of a disjunction as a UNION ALL, where that can be written."""
    parts = split_disjunction(tree)
    if parts is None:
        return None
    try:
        return rewriter.statement(parts)
    except UnsupportedError:
        return None


def _parsed(session: SparkSession, query: str) -> QueryTree:
    """The tree. What is not SQL is explained by Spark's parser, which evaluates nothing."""
    from pyspark.errors import ParseException

    try:
        return parse_query(query)
    except NotUnderstoodError:
        text = query.strip().rstrip(";").rstrip()
        try:
            session._jsparkSession.sessionState().sqlParser().parsePlan(text)
        except ParseException as error:
            raise spark_refusal(text, error) from None
        raise


def _check_parameters(channel: ChannelSpec, query: QueryTree) -> None:
    declared = [parameter.name for parameter in channel.parameters]
    for name, offset in query.parameters.items():
        if name not in declared:
            have = ", ".join(declared) or "none"
            raise PolicyError(f"parameter :{name} is not declared; declared: {have}", offset=offset)
    for name in declared:
        if name not in query.parameters:
            raise PolicyError(f"parameter {name!r} is declared, but the query has no :{name}")


def _check_datasets(query: QueryTree, datasets: Mapping[str, DatasetSpec]) -> None:
    for table in query.tree.find_all(exp.Table):
        if table.name.lower() not in datasets:
            have = ", ".join(sorted(datasets)) or "none"
            raise PolicyError(f"there is no dataset {table.name.lower()!r}; there are: {have}", table.this)
    if not query.datasets:
        raise PolicyError("the query reads no dataset")


def sample_arguments(types: Mapping[str, str]) -> dict[str, Any]:
    """A literal of the type of each parameter, so that Spark can analyse the query as it is written."""
    from pyspark.sql.functions import expr, lit

    return {name: lit(_sample_text(name)) if kind == "string" else expr(_SAMPLES[kind]) for name, kind in types.items()}


def _sample_text(name: str) -> str:
    return f"sample of {name}"


def _analysed(session: SparkSession, query: QueryTree, types: Mapping[str, str]) -> DataFrame:
    """Let Spark resolve names and types."""
    from pyspark.errors import PySparkException

    try:
        frame = session.sql(query.text, args=sample_arguments(types))
        columns = frame.columns
    except PySparkException as error:
        raise spark_refusal(query.text, error) from None
    for n, column in enumerate(columns):
        if column.lower() in [other.lower() for other in columns[:n]]:
            raise PolicyError(f"two columns are named {column!r}; rename one with AS")
    return frame


def _output_columns(session: SparkSession, types: Mapping[str, str], tree: exp.Expr) -> list[str] | None:
    """The columns of a query; None when it means nothing by itself."""
    from pyspark.errors import PySparkException

    try:
        return list(session.sql(to_sql(tree), args=sample_arguments(types)).columns)
    except PySparkException:
        return None


def _check_faithful(session: SparkSession, query: QueryTree, types: Mapping[str, str], analysed: DataFrame) -> None:
    """Spark must read the tree's text as it reads the user's: the two have the same plan."""
    from pyspark.errors import PySparkException

    again = to_sql(query.tree)
    same = False
    try:
        # Spark tells a comma from CROSS JOIN, the tree does not; both mean the same.
        for text in (again, to_sql(_without_cross(query.tree))):
            plans = [f._jdf.queryExecution() for f in (analysed, session.sql(text, args=sample_arguments(types)))]
            if query.timeless:
                same = same or plans[0].optimizedPlan().sameResult(plans[1].optimizedPlan())
            else:  # the optimizer puts the time into the plan
                same = same or plans[0].analyzed().sameResult(plans[1].analyzed())
    except PySparkException as error:
        raise PolicyError(f"{error_line(error)} (read as: {again})") from None
    if not same:
        raise PolicyError(f"the query is not understood; it would be read as: {again}")


def _without_cross(tree: exp.Expr) -> exp.Expr:
    tree = tree.copy()
    for join in tree.find_all(exp.Join):
        if join.kind == "CROSS" and not isinstance(join.this, exp.Lateral):
            join.set("kind", None)
            join.set("on", exp.true())
    return tree


def _check_casts(query: QueryTree, analysed: DataFrame, types: Mapping[str, str]) -> None:
    """Spark would cast a text that is compared with a number, and fail at run time for a text that is no number."""
    plan = analysed._jdf.queryExecution().analyzed().toString()
    for name, kind in types.items():
        found = re.search(rf"cast\({_sample_text(name)} as (\w+)\)", plan)
        if kind == "string" and found and found[1] != "string":
            raise PolicyError(f":{name} is string but is used as {found[1]}", offset=query.parameters[name])


def _check_new(channel: ChannelSpec, query: QueryTree, datasets: Mapping[str, DatasetSpec]) -> None:
    if channel.new and (channel.new not in query.datasets or datasets[channel.new].static):
        streams = ", ".join(name for name in query.datasets if not datasets[name].static) or "none"
        raise PolicyError(f"new is {channel.new!r}; allowed are the stream datasets it reads: {streams}")
    if not channel.continuous:
        return
    if not channel.new:
        raise PolicyError("a continuous channel must read a stream dataset in its FROM")
    check_batches(query.tree, channel.new)


def _named_columns(query: QueryTree, names: list[str]) -> tuple[exp.Expr, tuple[tuple[str, str], ...]]:
    """The tree with a name for each column, and the label and name of each. A label is the text of the expression."""
    tree = query.tree.copy()
    if not isinstance(tree, exp.Select) or any(node.is_star for node in tree.expressions):
        for name in names:
            if not re.fullmatch(r"\w+", name) and "`" in name:
                raise PolicyError(f"column {name} needs a name without `, with AS")
        return tree, tuple((name, name) for name in names)
    prefix = free_prefix(query.text)
    columns: list[tuple[str, str]] = []
    projections: list[exp.Expr] = []
    for n, (node, name) in enumerate(zip(tree.expressions, names, strict=False)):
        if isinstance(node, exp.Alias | exp.Column):
            columns.append((name, name))
            projections.append(node)
        else:
            columns.append((to_sql(node), f"{prefix}c{n}"))
            projections.append(exp.alias_(node.copy(), f"{prefix}c{n}"))
    if len(columns) != len(names):  # an expression with several columns, such as inline
        return tree, tuple((name, name) for name in names)
    tree.set("expressions", projections)
    return tree, tuple(columns)


def _check_plan(session: SparkSession, channel: ValidatedChannel) -> None:
    """Analyse the final statement, and refuse one that compares all rows of two datasets."""
    from pyspark.errors import PySparkException

    prefix = channel.statement.prefix
    levels = dict.fromkeys(channel.statement.radius_parameters, (0, 4))
    empty_view(session, f"{prefix}subscriptions", subscription_ddl(channel))
    text = result_sql(channel, {}, f"{prefix}subscriptions", levels)
    try:
        plan = session.sql(text)._jdf.queryExecution().executedPlan()
    except PySparkException as error:
        raise UnsupportedError(error_line(error)) from None
    if not _compares_subscriptions_only(plan, f"{prefix}key#"):
        raise PolicyError(
            "would compare every record of a dataset with every record of another (a cross join). "
            "Join them by an equality, or by distance(a.lat, a.lon, b.lat, b.lon) <= a number or parameter, with AND"
        )


def _compares_subscriptions_only(plan: Any, key: str) -> bool:
    """Whether each nested loop of a plan has the subscriptions on one side: `r.severity > :least` and the like."""
    children = [plan.children().apply(n) for n in range(plan.children().size())]
    if str(plan.nodeName()).startswith(_CROSS):
        subscribed = [child for child in children if key in child.toString()]
        alone = any(child.collectLeaves().size() == 1 for child in subscribed)
        if not subscribed or not (alone or plan.condition().isDefined()):
            return False
    return all(_compares_subscriptions_only(child, key) for child in children)
