"""Which keyed datasets a continuous query joins by their key with a column of the new records.

Of such a dataset only the records of those keys matter: a batch of a hundred records needs a hundred of a million. It
is read in one place, in the outer FROM, and its join keeps none of its records that has no partner among the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from nearcast.cluster.channels.query_tree import conjuncts, source_alias, sources

__all__ = ["key_lookups"]

# Types whose values are equal in Spark where they are equal in Arrow.
_COMPARED_ALIKE = {"string", "bigint", "int", "smallint", "tinyint"}


def key_lookups(
    tree: exp.Expr, new: str, keys: Mapping[str, str], types: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """By dataset: the column of `new` that its key is compared with.

    keys: of keyed datasets. types: Spark's name of the type of each column, by dataset and column, in lower case.
    """
    if not isinstance(tree, exp.Select):
        return {}
    tables = [table.name.lower() for table in tree.find_all(exp.Table)]
    plain = {
        source_alias(source): (source.name.lower(), join)
        for source, join in sources(tree)
        if isinstance(source, exp.Table) and _as_it_is(source) and tables.count(source.name.lower()) == 1
    }
    alias = next((alias for alias, (name, _) in plain.items() if name == new), None)
    if alias is None:
        return {}
    found = {}
    for other, (name, join) in plain.items():
        if name not in keys:
            continue
        # The one that comes later has the condition; a dataset that comes first must be on no side that is kept whole.
        adding = join if join is not None else plain[alias][1]
        if adding is None or adding.side not in (("", "LEFT") if join is not None else ("",)):
            continue
        for left, right in _equalities(adding):
            if (left.table.lower(), left.name.lower()) != (other, keys[name]) or right.table.lower() != alias:
                continue
            kind = types[name].get(keys[name])
            if kind in _COMPARED_ALIKE and types[new].get(right.name.lower()) == kind:
                found[name] = right.name.lower()
    return found


def _as_it_is(table: exp.Table) -> bool:
    """Whether nothing but a name belongs to it."""
    alias = table.args.get("alias")
    extra = [value for name, value in table.args.items() if name not in ("this", "alias") and value]
    return not extra and not (alias is not None and alias.args.get("columns"))


def _equalities(join: exp.Join) -> list[tuple[exp.Column, exp.Column]]:
    """The columns that must be equal, each pair in both orders."""
    condition = join.args.get("on")
    if condition is None:
        return []
    pairs = [(part.this, part.expression) for part in conjuncts(condition) if isinstance(part, exp.EQ)]
    pairs = [pair for pair in pairs if all(isinstance(side, exp.Column) for side in pair)]
    return pairs + [(right, left) for left, right in pairs]
