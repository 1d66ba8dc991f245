"""The page of the command line: the help of every command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

import typer

from documentation.tables import table
from nearcast.cli.app import COMMANDS
from nearcast.cli.lazy_group import lazy_app

__all__ = ["cli_reference"]


def cli_reference() -> str:
    """The page as text."""
    root = typer.main.get_command(lazy_app(COMMANDS))
    parts, group = [], ""
    for words, command in _commands(root, ()):
        if words[0] != group:
            group = words[0]
            parts.append(f"## {group}\n\n{COMMANDS[group].summary}")
        parts.append(_command(words, command))
    return "\n\n".join(["# Command line", _INTRODUCTION, *parts])


_INTRODUCTION = """\
`nearcast --version`, and for completion `nearcast --install-completion bash` (or `zsh`, `fish`). Exit codes:
0 done, 1 failed, 2 the input was refused or an extra is missing, 130 ended by Ctrl-C where a command was not
meant to run until then. `--json` prints one JSON value. Errors go to standard error in one line."""


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in sorted(group.commands):
        command = group.resolve_command(typer.Context(group), [name])[1]
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _command(words: tuple[str, ...], command: Any) -> str:
    context = typer.Context(command, info_name=" ".join(("nearcast", *words)))
    text, _, example = (command.help or "").partition("Example: ")
    text = "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip())
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f"### nearcast {' '.join(words)}", text, f"```\nnearcast {' '.join(words)} {usage}\n```"]
    rows = [_parameter(parameter, context) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows := [row for row in rows if row[0] != "`--help`"]:
        lines.append(table(("argument or option", "default", "what"), rows))
    if example:
        lines.append(f"Example: `{' '.join(example.split())}`")
    return "\n\n".join(lines)


def _parameter(parameter: Any, context: typer.Context) -> tuple[str, str, str]:
    is_option = parameter.param_type_name == "option"
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    name = names if is_option else f"`{(parameter.metavar or parameter.name).upper()}`"
    default = parameter.default
    plain = not (default in (None, "", False) or callable(default))
    shown = "required" if parameter.required else f"`{getattr(default, 'value', default)}`" if plain else ""
    choices = _choices(parameter)
    allowed = f" One of: {', '.join(choices)}." if choices else ""
    return name, shown, f"{parameter.help or ''}{allowed}"


def _choices(parameter: Any) -> list[str]:
    """What an option with a fixed set of values takes."""
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(one.value) for one in kind]
    return [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []
