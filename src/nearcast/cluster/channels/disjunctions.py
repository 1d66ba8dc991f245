"""`a = :x OR b = :y` and `a IN (:x, :y)` as UNION ALL, so that each part is a hash join instead of a nested loop.

A row satisfies `A OR B` when it satisfies A, or does not satisfy A and satisfies B: the parts have no row in common.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from nearcast.cluster.channels import grid
from nearcast.cluster.channels.query_tree import conjuncts, has_aggregate, joins_subscriptions, own_nodes

__all__ = ["split_disjunction"]

# More parts cost more than a nested loop.
_MOST_PARTS = 8
_CLAUSES = ("group", "having", "distinct", "order", "limit", "offset", "windows", "qualify", "laterals", "sort")


def split_disjunction(tree: exp.Expr) -> exp.Expr | None:
    """The UNION ALL of a SELECT that only joins and filters, when the one condition by which its subscriptions could be
    joined is a disjunction; None for any other query."""
    if not isinstance(tree, exp.Select) or any(tree.args.get(clause) for clause in _CLAUSES):
        return None
    where = tree.args.get("where")
    if where is None or any(node.is_star for node in tree.expressions) or has_aggregate(tree):
        return None
    if any(isinstance(node, exp.Window) for node in own_nodes(tree)):
        return None
    conditions = conjuncts(where.this)
    if any(map(_joins, conditions)):
        return None
    for condition in conditions:
        parts = list(_disjuncts(condition))
        if 1 < len(parts) <= _MOST_PARTS and all(any(map(_joins, conjuncts(part))) for part in parts):
            rest = [other for other in conditions if other is not condition]
            return _union(tree, rest, parts)
    return None


def _union(select: exp.Select, rest: list[exp.Expr], parts: list[exp.Expr]) -> exp.Expr:
    made: exp.Expr | None = None
    for n, part in enumerate(parts):
        others = [exp.Not(this=exp.Coalesce(this=_paren(p), expressions=[exp.false()])) for p in parts[:n]]
        branch = select.copy()
        branch.set("where", exp.Where(this=exp.and_(*(_paren(c) for c in [*rest, part]), *others)))
        made = branch if made is None else exp.Union(this=made, expression=branch, distinct=False)
    assert made is not None
    return made


def _joins(condition: exp.Expr) -> bool:
    """Whether subscriptions are joined by an equality: of a parameter and a column, or of grid cells."""
    if isinstance(condition, exp.LT | exp.LTE | exp.GT | exp.GTE):
        calls = condition.find_all(exp.Anonymous)
        return any(call.name.lower() == grid.FUNCTION and call.find(exp.Placeholder) is not None for call in calls)
    return joins_subscriptions(condition)


def _disjuncts(node: exp.Expr) -> Iterator[exp.Expr]:
    node = node.unnest()
    if isinstance(node, exp.Or):
        yield from _disjuncts(node.this)
        yield from _disjuncts(node.expression)
    elif isinstance(node, exp.In) and node.expressions and not node.args.get("query"):
        yield from (exp.EQ(this=_paren(node.this), expression=_paren(value)) for value in node.expressions)
    else:
        yield node


def _paren(node: exp.Expr) -> exp.Expr:
    return node.copy() if isinstance(node, exp.Column | exp.Placeholder) else exp.Paren(this=node.copy())
