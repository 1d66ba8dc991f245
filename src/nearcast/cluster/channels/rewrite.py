"""Rewrites a channel's query so that one statement answers all its subscriptions.

Every SELECT that depends on parameters gets the subscription table as its first relation, and `:name` becomes a column
of it: values are never text. The key of the subscription goes with each row: it joins what depends on parameters, and
groups, partitions and limits are made by key. Names inside begin with a prefix that the query does not contain.

`distance(a.lat, a.lon, x, y) <= :radius` is also written as an equality, so that it is a hash join: the rows of `a` are
copied into the grid cells around them, and the other point has one cell (`radius`). `a.x > :least` becomes an equality
of buckets (`ranges`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from sqlglot import exp

from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.cluster.channels.query_tree import has_aggregate, has_grouping_sets, own_nodes, sources, to_sql
from nearcast.cluster.channels.radius import RadiusConditions
from nearcast.cluster.channels.ranges import RangeConditions
from nearcast.cluster.channels.source_copies import SourceCopies
from nearcast.cluster.channels.statement import Statement, parameter_column

__all__ = ["Rewriter", "UnsupportedError"]


class UnsupportedError(PolicyError):
    """A construct that cannot be written for all subscriptions at once."""

    def __init__(self, construct: str) -> None:
        super().__init__(f"cannot be answered for all subscriptions at once: {construct}")


class Rewriter:
    """Of one query. columns: of each dataset. types: of the parameters. output_columns: of a query."""

    def __init__(
        self,
        prefix: str,
        columns: Mapping[str, Collection[str]],
        types: Mapping[str, str],
        output_columns: Callable[[exp.Expr], list[str] | None],
    ) -> None:
        self._prefix, self._output = prefix, output_columns
        self._numbers = itertools.count()
        self._names: dict[int, list[str] | None] = {}  # of the columns of set operations and of their sides
        copies = SourceCopies(columns)
        self._radius = RadiusConditions(prefix, types, copies)
        self._ranges = RangeConditions(prefix, types, copies)

    def statement(self, tree: exp.Expr) -> Statement:
        """The statement for all subscriptions; UnsupportedError when there is none."""
        tree = tree.copy()
        for operation in tree.find_all(exp.SetOperation):
            for query in (operation, operation.this, operation.expression):
                self._names[id(query)] = self._output(query)
        for select in list(tree.find_all(exp.Select)):
            self._radius.rewrite(select)
        keyed, key, position = self._keyed(tree, outermost=True)
        cells = self._radius.resolve(keyed)
        for table in list(keyed.find_all(exp.Table)):
            name = table.name.lower()
            if name.startswith(self._prefix):
                continue
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name)))
            table.set("this", exp.to_identifier(f"{self._prefix}view_{name}"))
        text = to_sql(keyed)
        for marker, sql in self._radius.own_cells.items():
            text = re.sub(rf"`?{marker}`?(?!\w)", lambda _, sql=sql: sql, text)  # type: ignore[misc]
        copies = tuple(found for found in self._ranges.found if found.marker in text)
        return Statement(text, self._prefix, key, position, cells, copies)

    def _named(self, query: exp.Expr) -> list[str]:
        names = self._names.get(id(query))
        if names is None:
            raise UnsupportedError("a set operation within a condition")
        return names

    def _name(self, what: str) -> str:
        return f"{self._prefix}{what}{next(self._numbers)}"

    def _keyed(self, query: Any, outermost: bool = False) -> tuple[Any, str, str]:
        """A query with the key as a further column; the names of the key's and the position's column."""
        while isinstance(query, exp.Subquery):
            if any(query.args.get(name) for name in ("order", "limit", "offset")):
                raise UnsupportedError("ORDER BY or LIMIT behind parentheses")
            query = query.this
        order, limit, offset = (query.args.pop(name, None) for name in ("order", "limit", "offset"))
        for name in ("sort", "cluster", "distribute"):
            query.args.pop(name, None)
        if limit is None and offset is None and not outermost:
            order = None  # the order of a subquery means nothing
        if isinstance(query, exp.SetOperation):
            names = self._named(query)
            orders = [] if order is None else [self._order_by_output(item, names) for item in order.expressions]
            made, key = self._set_operation(query, names)
        else:
            made, key, orders = self._select(query, [] if order is None else order.expressions)
        if not orders and limit is None and offset is None:
            return made, key, ""
        return self._ranked(made, key, orders, _number(limit), _number(offset) or 0)

    def _ranked(
        self, query: Any, key: str, orders: list[exp.Expr], limit: int | None, offset: int
    ) -> tuple[Any, str, str]:
        """The rows of each key numbered in their order, and only the first ones when there is a limit."""
        position = self._name("r")
        window = exp.Window(
            this=exp.RowNumber(),
            partition_by=[exp.column(key)],
            order=exp.Order(expressions=orders or [exp.Ordered(this=exp.column(key), nulls_first=True)]),
        )
        ranked = exp.select("*", exp.alias_(window, position)).from_(self._derived(query))
        if limit is None and not offset:
            return ranked, key, position
        outer = exp.select("*").from_(self._derived(ranked))
        if offset:
            outer = outer.where(exp.GT(this=exp.column(position), expression=exp.Literal.number(offset)))
        if limit is not None:
            outer = outer.where(exp.LTE(this=exp.column(position), expression=exp.Literal.number(offset + limit)))
        return outer, key, position

    def _derived(self, query: Any) -> exp.Subquery:
        return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(self._name("d"))))

    def _set_operation(self, query: exp.SetOperation, names: list[str]) -> tuple[Any, str]:
        """Both sides with their keys. Columns go by position, so that each side has exactly its own and the key."""
        if query.args.get("by_name"):
            raise UnsupportedError("a set operation BY NAME")
        if len({name.lower() for name in names}) < len(names):
            raise UnsupportedError("a set operation with two columns of one name")
        key = self._name("k")
        for side in ("this", "expression"):
            branch = query.args[side]
            own = self._named(branch)
            inner, inner_key, _ = self._keyed(branch)
            alias = self._name("d")
            columns = [exp.to_identifier(name, quoted=True) for name in own]
            if len({name.lower() for name in own}) < len(own) or any(not re.fullmatch(r"\w+", name) for name in own):
                raise UnsupportedError("a set operation with unnamed columns; name them with AS")
            chosen = exp.select(
                *[
                    exp.alias_(exp.Column(this=column, table=exp.to_identifier(alias)), name, quoted=True)
                    for column, name in zip(columns, names, strict=True)
                ],
                exp.alias_(exp.column(inner_key, alias), key),
            ).from_(exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(alias))))
            query.set(side, chosen)
        return query, key

    def _order_by_output(self, item: Any, names: list[str]) -> Any:
        target = item.this
        if isinstance(target, exp.Literal) and not target.is_string:
            item.set("this", exp.column(_numbered(names, target), quoted=True))
        elif target.find(exp.Query):
            raise UnsupportedError("ORDER BY a subquery")
        return item

    def _select(self, select: exp.Select, order: Iterable[Any]) -> tuple[Any, str, list[Any]]:
        """A SELECT with its key, and with columns to order by."""
        if not sources(select):
            raise UnsupportedError("a SELECT without FROM")
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on"):
            raise UnsupportedError("DISTINCT ON")
        subscription, key = self._name("p"), self._name("k")
        orders = []
        for item in order:
            hidden = self._name("o")
            select.append("expressions", exp.alias_(_order_expression(select, item.this), hidden))
            item.set("this", exp.column(hidden))
            orders.append(item)
        if not select.args.get("group") and has_aggregate(select):
            return self._lateral(select, subscription, key), key, orders
        self._ranges.rewrite(select)
        self._join_subscriptions(select, subscription)
        self._bind(select, subscription)
        key_column = exp.column(f"{self._prefix}key", subscription)
        self._group_by(select, key_column, subscription)
        for window in [node for node in own_nodes(select) if isinstance(node, exp.Window)]:
            if window.args.get("alias") is None or window.parent is select:
                window.set("partition_by", [*(window.args.get("partition_by") or []), key_column.copy()])
        select.append("expressions", exp.alias_(key_column.copy(), key))
        return select, key, orders

    def _lateral(self, select: exp.Select, subscription: str, key: str) -> exp.Select:
        """An aggregate over all rows has a row for each subscription, even without input: Spark takes care of that."""
        for source, _ in sources(select):
            if source.find(exp.Placeholder) and not isinstance(source, exp.Lateral):
                raise UnsupportedError("an aggregate without GROUP BY over a subquery with parameters")
        self._bind(select, subscription)
        inner = exp.Lateral(
            this=exp.Subquery(this=select), alias=exp.TableAlias(this=exp.to_identifier(self._name("d")))
        )
        outer = exp.select("*", exp.alias_(exp.column(f"{self._prefix}key", subscription), key))
        outer = outer.from_(self._subscriptions(subscription))
        outer.append("joins", exp.Join(this=inner, kind="CROSS"))
        return outer

    def _subscriptions(self, alias: str) -> exp.Table:
        return exp.to_table(f"{self._prefix}subscriptions", alias=alias)

    def _join_subscriptions(self, select: exp.Select, subscription: str) -> None:
        """Put the subscription table before all relations of a FROM."""
        relations = sources(select)
        joins = [join for _, join in relations if join is not None]
        keyed_by: dict[int, str] = {}
        dependent = any(_depends(source) for source, _ in relations) or any(
            _depends(join.args.get("on")) for join in joins
        )
        if any(join.side in ("RIGHT", "FULL") for join in joins):
            if not dependent:
                first = relations[0][0]
                first.set("joins", [*(first.args.get("joins") or []), *joins])
                select.set("joins", None)
                relations, joins = [(exp.Subquery(this=first), None)], []
            elif len(joins) == 1 and joins[0].side == "RIGHT" and not joins[0].args.get("using"):
                left, only = relations[0][0], joins[0]
                right = only.this
                only.set("side", "LEFT")
                only.set("this", left)
                relations = [(right, None), (left, only)]
            else:
                raise UnsupportedError("parameters within a FULL JOIN, or a RIGHT JOIN with others")
        placed: list[exp.Join] = []
        for source, join in relations:
            if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Query) and _depends(source):
                inner, inner_key, _ = self._keyed(source.this)
                source.set("this", inner)
                keyed_by[id(source)] = inner_key
            elif _depends(source) and not isinstance(source, exp.Lateral):
                raise UnsupportedError("parameters within joins in parentheses")
            condition = None
            if id(source) in keyed_by:
                if not source.alias:
                    source.set("alias", exp.TableAlias(this=exp.to_identifier(self._name("d"))))
                names = source.args["alias"].args.get("columns")
                if names:
                    names.append(exp.to_identifier(keyed_by[id(source)]))
                condition = exp.EQ(
                    this=exp.column(keyed_by[id(source)], source.alias),
                    expression=exp.column(f"{self._prefix}key", subscription),
                )
            if join is None:
                placed.append(exp.Join(this=source, on=condition) if condition else exp.Join(this=source, kind="CROSS"))
                continue
            if condition is not None:
                if join.args.get("using") or join.args.get("method"):
                    raise UnsupportedError("USING or NATURAL with a subquery that has parameters; write ON")
                join.set("on", exp.and_(join.args["on"], condition) if join.args.get("on") else condition)
                if join.kind == "CROSS":
                    join.set("kind", None)
            placed.append(join)
        select.set("from_", exp.From(this=self._subscriptions(subscription)))
        select.set("joins", placed)

    def _bind(self, node: exp.Expr, subscription: str) -> None:
        """Every parameter as a column of the subscription table."""
        for place in list(node.find_all(exp.Placeholder)):
            place.replace(exp.column(parameter_column(self._prefix, place.name), subscription))

    def _group_by(self, select: exp.Select, key: exp.Column, subscription: str) -> None:
        group = select.args.get("group")
        if group is None:
            return
        if has_grouping_sets(group):
            raise UnsupportedError("ROLLUP, CUBE and GROUPING SETS")
        if group.args.get("all"):
            group.set("all", None)
            group.set("expressions", [node.unalias().copy() for node in select.expressions if not has_aggregate(node)])
        # The values of a subscription are the same for all its rows: grouping by them changes nothing.
        used = {node.name: node.copy() for node in select.find_all(exp.Column) if node.table == subscription}
        for column in (key.copy(), *(used[name] for name in sorted(used))):
            group.append("expressions", column)


def _depends(node: Any) -> bool:
    return node is not None and node.find(exp.Placeholder) is not None


def _number(clause: Any) -> int | None:
    if clause is None:
        return None
    value = clause.expression
    if not isinstance(value, exp.Literal) or value.is_string or not value.name.isdigit():
        raise UnsupportedError("LIMIT or OFFSET that is not a number")
    return int(value.name)


def _numbered(outputs: list[Any], number: exp.Literal) -> Any:
    """The output column that an ORDER BY names by its number; Spark takes 1.5 and what is no INT for a constant."""
    if not number.name.isdigit() or not 0 < int(number.name) <= len(outputs):
        raise UnsupportedError(f"ORDER BY {number.name}, a constant")
    return outputs[int(number.name) - 1]


def _order_expression(select: exp.Select, target: exp.Expr) -> Any:
    """What an ORDER BY item means: the number or the name of an output column stands for its expression."""
    if isinstance(target, exp.Literal) and not target.is_string:
        chosen = _numbered(select.expressions, target)
        if chosen.is_star:
            raise UnsupportedError("ORDER BY a number with *")
        return chosen.unalias().copy()
    aliases = {node.alias.lower(): node.this for node in select.expressions if isinstance(node, exp.Alias)}

    def replaced(node: exp.Expr) -> Any:
        if isinstance(node, exp.Column) and not node.table and node.name.lower() in aliases:
            return aliases[node.name.lower()].copy()
        return node

    return target.copy().transform(replaced)
