"""Tables of all pages: sortable, with units, and cards instead of rows on a phone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import ui

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["BYTES", "COMPACT_CARDS", "PERCENT", "data_table", "live_table", "show_rows"]

# How the browser writes a number, which stays one for sorting.
PERCENT = 'value => typeof value === "number" ? `${(100 * value).toFixed(1)} %` : value'
BYTES = """value => {
  if (typeof value !== "number") return value;
  const step = Math.min(4, Math.floor(Math.log10(Math.max(value, 1)) / 3));
  return `${step ? (value / 1000 ** step).toFixed(1) : value} ${["B", "kB", "MB", "GB", "TB"][step]}`;
}"""
COMPACT_CARDS = """
.q-table__grid-item-row { display: flex; justify-content: space-between; gap: 1rem; }
.q-table__grid-item-title { white-space: nowrap; }
.q-table__grid-item-value { text-align: right; overflow-wrap: anywhere; }
"""
_NARROW = 3  # columns that have room on a phone
_ON_A_PAGE = 50
_PERIOD = 1.0


def data_table(
    columns: Mapping[str, str],
    key: str,
    empty: str,
    *,
    formats: Mapping[str, str] | None = None,
    selection: Any = None,
) -> ui.table:
    """A table without rows, which says `empty`. columns: title by field. formats: how the browser writes fields."""
    given = [
        {"name": name, "label": title, "field": name, "align": "left", "sortable": True}
        | ({":format": formats[name]} if formats and name in formats else {})
        for name, title in columns.items()
    ]
    table = ui.table(rows=[], columns=given, row_key=key, pagination=_ON_A_PAGE, selection=selection).classes("w-full")
    table.props(f'flat bordered dense wrap-cells hide-pagination no-data-label="{empty}"')
    if len(columns) > _NARROW:
        table.props(':grid="Quasar.Screen.lt.sm"')
    table.add_slot("no-data", "{{ props.message }}")  # without the sign of a warning: having none is no fault
    return table


def show_rows(table: ui.table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Show these rows; the browser turns pages where they have no room on one."""
    if len(rows) > _ON_A_PAGE:
        table.props(remove="hide-pagination")
    else:
        table.props("hide-pagination")
    table.rows = [dict(row) for row in rows]


def live_table(
    columns: Mapping[str, str],
    rows: Callable[[], Sequence[Mapping[str, Any]]],
    key: str,
    empty: str,
    formats: Mapping[str, str] | None = None,
) -> None:
    """A table that is refreshed each second. rows: a function that gives them."""

    def shown() -> list[dict[str, Any]]:
        return [{name: _text(row.get(name)) for name in {*columns, key}} for row in rows()]

    table = data_table(columns, key, empty, formats=formats)
    show_rows(table, shown())

    def refresh() -> None:
        found = shown()
        if found != table.rows:
            show_rows(table, found)

    ui.timer(_PERIOD, refresh)


def _text(value: Any) -> Any:
    if value is None or value == "":
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return round(value, 3) if isinstance(value, float) else value
