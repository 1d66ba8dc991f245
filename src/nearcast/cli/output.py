"""What commands print: a table, the fields of one thing, or JSON."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "JsonLinesOption",
    "JsonOption",
    "escape_control",
    "open_console",
    "plain_console",
    "print_done",
    "print_fields",
    "print_figures",
    "print_json",
    "print_rows",
    "waiting_notice",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON value.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each message.")]
_PIPE_WIDTH = 10_000  # in a pipe each row is one line, whatever its length
# A publisher may put into its texts what a terminal would obey; lines and tabs are harmless.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@contextlib.contextmanager
def waiting_notice(text: str, after: float = 1.0) -> Iterator[Callable[[], None]]:
    """Say on standard error what a command waits for, if the block takes longer than `after` seconds.

    It yields a function to call when there is nothing to wait for any more.
    """
    timer = threading.Timer(after, typer.echo, (text,), {"err": True})
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    typer.echo(json.dumps(value))


def print_figures(value: Any) -> None:
    """Dataclasses with figures as one JSON value on one line; null for those that there are none of."""
    typer.echo(json.dumps(msgspec.json.decode(msgspec.json.encode(value))))


def print_done(sentence: str, fields: dict[str, Any], as_json: bool) -> None:
    """What a command has done: a sentence, or a JSON object."""
    if as_json:
        print_json(fields)
    else:
        typer.echo(sentence)


def print_rows(rows: list[dict[str, Any]], as_json: bool, empty: str) -> None:
    """A table with one line per row, or a JSON list."""
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo(empty)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")  # never truncated: it may be an address
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    plain_console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def open_console(stderr: bool = False) -> Console:
    """For tables and texts of a fixed layout: as wide as a terminal; in a file or a pipe they have room."""
    console = plain_console(stderr=stderr)
    return console if console.is_terminal else plain_console(stderr=stderr, width=200)


def plain_console(**options: Any) -> Console:
    """Rich's, which prints texts as they are: in an id `:cloud:` is a site, and `[/x]` in a reason is no markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, **options)


def print_fields(fields: dict[str, Any], as_json: bool) -> None:
    """One line per field, or a JSON object."""
    if as_json:
        print_json(fields)
        return
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        typer.echo(f"{name.replace('_', ' '):<{width}}  {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_text(item)}" for name, item in value.items()) or "-"
    return "-" if value is None or value == "" else escape_control(str(value))


def escape_control(text: str) -> str:
    """A text whose control characters a terminal shows instead of obeying them."""
    return text.translate(_CONTROL)
