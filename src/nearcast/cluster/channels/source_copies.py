"""Relations whose rows are copied, so that a condition becomes an equality for a hash join.

Each copy has a further column; the equality holds for exactly one of them, so that no row comes twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlglot import exp

from nearcast.cluster.channels.query_tree import source_alias, sources

__all__ = ["SourceCopies"]


class SourceCopies:
    """columns: of each dataset."""

    def __init__(self, columns: Mapping[str, Collection[str]]) -> None:
        self._columns = columns

    def owner(self, select: exp.Select, parts: list[exp.Expr]) -> exp.Expr | None:
        """The relation of the SELECT that has all columns of these expressions, if it can be copied."""
        owners: list[exp.Expr | None] = []
        for part in parts:
            if part.find(exp.Placeholder, exp.Query, exp.Lambda):
                return None
            owners += [self._owner_of(select, column) for column in part.find_all(exp.Column)]
        if not owners or any(owner is not owners[0] for owner in owners):
            return None
        return owners[0]

    def explode(self, source: exp.Expr, copies: exp.Expr, column: str) -> tuple[exp.Expr, exp.Column]:
        """Replace a relation by its copies, one for each element of an array; returns them and the column with it."""
        exploded = exp.Anonymous(this="explode", expressions=[copies])
        return self._wrap(source, exp.select("*", exp.alias_(exploded, column)), column)

    def join(self, source: exp.Expr, other: exp.Expr, column: str) -> tuple[exp.Expr, exp.Column]:
        """Replace a relation by its copies, one for each row of another; returns them and the column of that."""
        return self._wrap(source, exp.select("*").join(other, join_type="cross"), column)

    def _wrap(self, source: exp.Expr, inner: exp.Select, column: str) -> tuple[exp.Expr, exp.Column]:
        alias = source_alias(source)
        wrapped = exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        source.replace(wrapped)
        if not source.alias:
            source.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
        inner.set("from_", exp.From(this=source))
        return wrapped, exp.column(column, exp.to_identifier(alias, quoted=True))

    def _owner_of(self, select: exp.Select, column: exp.Column) -> exp.Expr | None:
        first = column.parts[0].name.lower()
        relations = [source for source, _ in sources(select)]
        if len(column.parts) > 1:
            named = [source for source in relations if source_alias(source) == first]
            if named:
                return named[0] if _copyable(named[0]) else None
        having = [source for source in relations if self._may_have(source, first)]
        return having[0] if len(having) == 1 and _copyable(having[0]) and not select.args.get("laterals") else None

    def _may_have(self, source: exp.Expr, column: str) -> bool:
        if isinstance(source, exp.Table) and not source.args.get("joins"):
            return column in self._columns.get(source.name.lower(), ())
        if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Select) and not source.this.is_star:
            return column in [name.lower() for name in source.this.named_selects]
        return True  # unknown


def _copyable(source: exp.Expr) -> bool:
    if isinstance(source, exp.Table):
        return not any(source.args.get(name) for name in ("joins", "laterals"))
    plain = isinstance(source, exp.Subquery) and isinstance(source.this, exp.Query) and bool(source.alias)
    # A subquery with parameters gets its key later; its columns may be renamed: leave both as they are.
    return plain and source.find(exp.Placeholder) is None and not source.args["alias"].args.get("columns")
