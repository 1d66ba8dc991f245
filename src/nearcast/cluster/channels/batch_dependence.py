"""Whether a continuous query's answer depends on how new records fall into batches.

Each record is seen once, alone or with others. So the new dataset must be read row by row: not under an aggregate,
DISTINCT, LIMIT or window unless they keep records apart (by its `_sequence`), not on the optional side of an outer
join, not in a condition such as NOT EXISTS.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from nearcast.cluster.channels.query_policy import PolicyError
from nearcast.cluster.channels.query_tree import has_aggregate, has_grouping_sets, own_nodes, source_alias, sources

__all__ = ["check_batches"]

_SEQUENCE = "_sequence"


def check_batches(tree: exp.Expr, new: str) -> None:
    """Refuse a query whose answer would depend on which records of `new` are in one batch."""
    if isinstance(tree, exp.Union) and not tree.args.get("distinct"):
        if any(tree.args.get(name) for name in ("limit", "offset")):
            raise _error("LIMIT", new)
        for branch in (tree.this, tree.expression):
            check_batches(_query(branch), new)
        return
    if isinstance(tree, exp.SetOperation):
        raise _error(type(tree).__name__.upper() + " of distinct rows", new)
    assert isinstance(tree, exp.Select)
    _check_select(tree, new)


def _check_select(select: exp.Select, new: str) -> bool:
    """Check a SELECT that reads new records; returns whether its output has their `_sequence`, under that name."""
    holders = [(source, join) for source, join in sources(select) if _reads(source, new)]
    if not holders:
        raise PolicyError(
            f"each SELECT of a UNION ALL in a continuous channel must read {new} in its FROM; "
            "else its rows would come again with every batch"
            if select.parent is not None and isinstance(select.parent, exp.SetOperation)
            else f"{new} is read in a condition only: the answer would depend on which records are in one batch"
        )
    if len(holders) > 1 or sum(1 for _ in select.find_all(exp.Table) if _.name.lower() == new) > 1:
        raise PolicyError(f"a continuous channel can read {new} once: only new records are seen")
    (source, join) = holders[0]
    _check_join(select, source, join, new)
    keeps = _source_keeps_sequence(source, new)
    alias = source_alias(source)
    others = [other for other, _ in sources(select) if other is not source]

    def is_sequence(node: exp.Expr) -> bool:
        node = node.unalias()
        if not isinstance(node, exp.Column) or node.name.lower() != _SEQUENCE or not keeps:
            return False
        if node.table:
            return node.table.lower() == alias
        return not any(_may_have_sequence(other) for other in others)

    projections = list(select.expressions)
    if select.args.get("limit") or select.args.get("offset"):
        raise _error("LIMIT", new)
    group = select.args.get("group")
    if has_aggregate(select) or group:
        grouped: list[exp.Expr] = list(group.expressions) if group else []
        if group and group.args.get("all"):
            grouped = [node for node in projections if not has_aggregate(node)]
        if not any(map(is_sequence, grouped)) or (group and has_grouping_sets(group)):
            raise _error("an aggregate", new)
    if select.args.get("distinct") and not any(map(is_sequence, projections)) and not _star(projections, alias):
        raise _error("DISTINCT", new)
    for window in [node for node in own_nodes(select) if isinstance(node, exp.Window)]:
        if not any(map(is_sequence, window.args.get("partition_by") or [])):
            raise _error("a window", new)
    return any((is_sequence(node) and node.alias_or_name.lower() == _SEQUENCE) for node in projections) or (
        _star(projections, alias) and keeps
    )


def _check_join(select: exp.Select, source: exp.Expr, join: exp.Join | None, new: str) -> None:
    after = select.args.get("joins") or []
    if join is not None:
        if join.kind in ("SEMI", "ANTI"):
            raise _error(f"a {join.kind} JOIN with it", new)
        if join.side in ("LEFT", "FULL") or isinstance(source, exp.Lateral):
            raise _error("an outer join on whose optional side it is", new)
        after = after[after.index(join) + 1 :]
    if any(other.side in ("RIGHT", "FULL") for other in after):
        raise _error("an outer join on whose optional side it is", new)


def _source_keeps_sequence(source: exp.Expr, new: str) -> bool:
    if isinstance(source, exp.Table):
        if source.args.get("joins"):
            raise PolicyError(f"write the joins of {new} without parentheses in a continuous channel")
        return True
    inner = source.this
    if isinstance(source, exp.Subquery) and isinstance(inner, exp.Table):
        raise PolicyError(f"write the joins of {new} without parentheses in a continuous channel")
    if isinstance(inner, exp.SetOperation):
        check_batches(inner, new)
        return False
    inner = _query(inner)
    assert isinstance(inner, exp.Select)
    return _check_select(inner, new)


def _query(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Subquery):
        node = node.this
    return node


def _reads(source: exp.Expr, new: str) -> bool:
    return any(table.name.lower() == new for table in source.find_all(exp.Table))


def _may_have_sequence(source: exp.Expr) -> bool:
    """A static dataset has none, but which is static is not known here: whoever is unsure qualifies the column."""
    return isinstance(source, exp.Table) or _SEQUENCE in source.sql().lower() or bool(source.find(exp.Star))


def _star(projections: Iterable[exp.Expr], alias: str) -> bool:
    for node in projections:
        if isinstance(node, exp.Star) and not node.args.get("except_"):
            return True
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star) and node.table.lower() == alias:
            return True
    return False


def _error(what: str, new: str) -> PolicyError:
    return PolicyError(
        f"{what} in a continuous channel would depend on which records of {new} are in one batch; give the channel a "
        f"period, or group by the record ({new}._sequence)"
    )
