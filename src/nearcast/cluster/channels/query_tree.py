"""A channel's query as a tree: parsed by sqlglot in Spark's dialect, with its WITH clauses put where they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlglot import TokenType, exp
from sqlglot.dialects import Spark
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import walk_in_scope

from nearcast.cluster.channels.query_policy import NotUnderstoodError, PolicyError, check_length, check_policy
from nearcast.cluster.channels.text_patterns import check_patterns
from nearcast.cluster.channels.value_bounds import check_bounds
from nearcast.cluster.spark_errors import error_line

__all__ = [
    "QueryTree", "conjuncts", "has_aggregate", "has_grouping_sets", "joins_subscriptions", "own_nodes", "parse_query",
    "source_alias", "sources", "to_sql",
]  # fmt: skip

_STEPS_OF_A_TOKEN, _STEPS_AT_LEAST = 20, 5_000  # usual queries take 1 to 1.3 of a token
# Texts that Spark takes for a moment when it parses them.
_MOMENTS = {"now", "today", "tomorrow", "yesterday", "epoch"}
# Functions that are evaluated when a plan is made: such a plan cannot be reused.
_EVALUATED_AT_PLANNING = {"now", "curdate", "localtimestamp", "current_timezone", "unix_timestamp"}
# Aggregates for which sqlglot has no class, or one that does not say so.
_AGGREGATE_NAMES = """
    bool_and bool_or every some any any_value first_value last_value last mean percentile percentile_cont
    percentile_disc
    approx_percentile mode std stddev_pop stddev_samp var_pop var_samp variance bit_and bit_or bit_xor histogram_numeric
    collect_list collect_set array_agg listagg string_agg max_by min_by count_if try_sum try_avg median skewness
    kurtosis
    corr covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
    regr_syy
    grouping grouping_id
"""
_AGGREGATES = frozenset(_AGGREGATE_NAMES.split())


@dataclass(frozen=True)
class QueryTree:
    """tree: without WITH; its tables are datasets. parameters: the offset of the first use of each. datasets: that it
    reads, in the order of the text. timeless: no part of it is evaluated when a plan is made."""

    text: str
    tree: exp.Query
    parameters: Mapping[str, int]
    datasets: tuple[str, ...]
    timeless: bool


class _BoundedParser(Spark.Parser):  # type: ignore[misc]  # it has no type
    """sqlglot's parser with a limit on its steps. PolicyError when it reads tokens again and again.

    It goes back to try another reading, and does so within what it tries: of `int(int(int(1)))` each further level
    takes two or three times as long. Twenty of them, some hundred characters, would not end, in the driver.
    """

    steps_left = 0

    def _advance(self, times: int = 1) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise PolicyError("the query is too complex to be read; nest its expressions less deeply")
        super()._advance(times)


def parse_query(text: str) -> QueryTree:
    """Parse and check a query. NotUnderstoodError when it cannot be parsed, PolicyError when a part is not allowed."""
    text = text.strip().rstrip(";").rstrip()
    try:
        return _parse(text)
    except RecursionError:  # Spark's parser would end its own stack over it
        raise PolicyError("the query is nested too deeply") from None
    except SqlglotError as error:
        found = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        reason = found.get("description") or error_line(error)
        raise NotUnderstoodError(f"the query is not understood: {reason}", offset=_offset(text, found)) from None


def _parse(text: str) -> QueryTree:
    check_length(text)
    dialect = Spark()
    tokens = dialect.tokenize(text)
    parser = _BoundedParser(dialect=dialect)
    parser.steps_left = _STEPS_AT_LEAST + _STEPS_OF_A_TOKEN * len(tokens)
    statements = [tree for tree in parser.parse(tokens, text) if tree is not None]
    if len(statements) != 1:
        raise PolicyError("one SELECT is needed")
    tree: Any = statements[0]
    check_policy(tree)
    parameters: dict[str, int] = {}
    for colon, name in pairwise(tokens):
        if colon.token_type == TokenType.COLON and name.start == colon.end + 1:
            parameters.setdefault(name.text, colon.start)
    named = {node.name for node in tree.find_all(exp.Placeholder)}
    parameters = {name: offset for name, offset in parameters.items() if name in named}
    if named - parameters.keys():
        raise SqlglotError(f"parameter {sorted(named - parameters.keys())[0]} is not understood")
    for node in tree.find_all(exp.Cast):
        if node.to.is_type(*exp.DataType.TEMPORAL_TYPES) and node.this.is_string and _moment(node.this.name):
            raise PolicyError(f"'{node.this.name}' as a time is evaluated once; use current_timestamp()", node)
    tree = tree.copy()
    for node in tree.walk():
        node.comments = None
    tree = _without_with(tree, {})
    while isinstance(tree, exp.Subquery) and not tree.alias and isinstance(tree.this, exp.Query):
        tree = _unwrapped(tree)
    check_bounds(tree)
    check_patterns(tree)
    datasets = dict.fromkeys(table.name.lower() for table in tree.find_all(exp.Table))
    return QueryTree(text, tree, parameters, tuple(datasets), not any(map(_evaluated_at_planning, tree.walk())))


def to_sql(tree: exp.Expr) -> str:
    """The text of a tree for Spark."""
    return tree.sql("spark", comments=False, normalize_functions=False)


def own_nodes(select: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of a SELECT without those of the queries inside it."""
    yield from walk_in_scope(select)


def has_aggregate(node: exp.Expr) -> bool:
    """Whether an expression, or the clauses of a SELECT, aggregate rows; a function with OVER does not."""
    for inner in own_nodes(node):
        named = isinstance(inner, exp.Anonymous | exp.AnonymousAggFunc) and inner.name.lower() in _AGGREGATES
        if not (isinstance(inner, exp.AggFunc) or named):
            continue
        holder = inner.parent
        while isinstance(holder, exp.Filter | exp.WithinGroup | exp.IgnoreNulls | exp.RespectNulls):
            holder = holder.parent
        if not isinstance(holder, exp.Window):
            return True
    return False


def sources(select: exp.Select) -> list[tuple[exp.Expr, exp.Join | None]]:
    """The relations of a FROM clause, each with the join that adds it."""
    origin = select.args.get("from_")
    found: list[tuple[exp.Expr, exp.Join | None]] = [(origin.this, None)] if origin else []
    return found + [(join.this, join) for join in select.args.get("joins") or []]


def source_alias(source: exp.Expr) -> str:
    """The name by which a relation is known in its SELECT, in lower case."""
    return str(source.alias_or_name).lower()


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that AND joins."""
    node = node.unnest()
    return [*conjuncts(node.this), *conjuncts(node.expression)] if isinstance(node, exp.And) else [node]


def joins_subscriptions(condition: exp.Expr) -> bool:
    """Whether it is an equality of parameters and columns, or of grid cells: by it, subscriptions are joined."""
    if not isinstance(condition, exp.EQ):
        return False
    sides = (condition.this, condition.expression)
    return any(_of_parameters(a) and _of_columns(b) for a, b in (sides, sides[::-1]))


def _of_parameters(node: exp.Expr) -> bool:
    return node.find(exp.Placeholder) is not None and node.find(exp.Column, exp.Query) is None


def _of_columns(node: exp.Expr) -> bool:
    return node.find(exp.Column) is not None and node.find(exp.Placeholder, exp.Query) is None


def has_grouping_sets(group: exp.Group) -> bool:
    """Whether a GROUP BY groups in more than one way."""
    return any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets", "totals")) or any(
        isinstance(node, exp.GroupingSets | exp.Rollup | exp.Cube) for node in group.expressions
    )


def _offset(text: str, found: dict[str, Any]) -> int | None:
    """Of the token that sqlglot stumbled over; it notes the line, and the column where that token ends."""
    line, column, token = found.get("line"), found.get("col"), found.get("highlight")
    if not isinstance(line, int) or not isinstance(column, int) or not isinstance(token, str):
        return None
    begun = sum(len(one) for one in text.splitlines(keepends=True)[: line - 1])
    return min(max(begun + column - len(token), 0), max(len(text) - 1, 0))


def _moment(text: str) -> bool:
    return text.strip().split(" ")[0].lower() in _MOMENTS


def _evaluated_at_planning(node: exp.Expr) -> bool:
    if isinstance(node, exp.CurrentDate | exp.CurrentTimestamp | exp.CurrentTime | exp.Localtimestamp):
        return True
    if isinstance(node, exp.StrToUnix | exp.TimeToUnix) and node.this is None:
        return True
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _EVALUATED_AT_PLANNING
    return isinstance(node, exp.Func) and node.sql_name().lower() in _EVALUATED_AT_PLANNING


def _unwrapped(query: exp.Subquery) -> Any:
    """The query in parentheses, when nothing else belongs to them."""
    if any(query.args.get(name) for name in ("order", "limit", "offset", "joins", "laterals")):
        inner = query.this.copy()
        outer = exp.select("*").from_(exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier("q"))))
        for name in ("order", "limit", "offset"):
            outer.set(name, query.args.get(name))
        return outer
    return query.this


def _without_with(node: Any, scope: dict[str, exp.CTE]) -> Any:
    """Replace the names of WITH clauses by their queries. An inner name hides an outer one, and a dataset."""
    clause = node.args.get("with_")
    if clause is not None:
        scope = dict(scope)
        for cte in clause.expressions:
            body = _without_with(cte.this, scope)
            cte = cte.copy()
            cte.set("this", body.copy())
            scope[cte.alias.lower()] = cte
        node.set("with_", None)
    if isinstance(node, exp.Table) and not node.args.get("db") and node.name.lower() in scope:
        return _in_place_of(node, scope[node.name.lower()], scope)
    for name, value in list(node.args.items()):
        if isinstance(value, exp.Expr):
            node.set(name, _without_with(value, scope))
        elif isinstance(value, list):
            node.set(name, [_without_with(v, scope) if isinstance(v, exp.Expr) else v for v in value])
    return node


def _in_place_of(table: exp.Table, cte: exp.CTE, scope: dict[str, exp.CTE]) -> exp.Subquery:
    alias = table.args.get("alias")
    columns = (alias and alias.args.get("columns")) or cte.args["alias"].args.get("columns")
    name = (alias.this.copy() if alias and alias.this else None) or exp.to_identifier(table.name)
    made = exp.Subquery(
        this=cte.this.copy(),
        alias=exp.TableAlias(this=name, columns=[column.copy() for column in columns] if columns else None),
    )
    for part in ("joins", "laterals"):
        if table.args.get(part):
            made.set(part, [_without_with(inner, scope) for inner in table.args[part]])
    return made
