"""A group of commands whose modules are imported when one of them is run, not when it is listed.

Help and shell completion of the group need the names and one-line summaries only, so neither loads a planner.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperGroup

from nearcast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LazyCommand", "lazy_app", "load"]


class LazyCommand(NamedTuple):
    """Where a command is: a module and the name in it of a Typer application or of a function."""

    module: str
    attribute: str
    summary: str


def lazy_app(commands: Mapping[str, LazyCommand], **options: Any) -> typer.Typer:
    """An application with these commands by name; `options` are those of `typer.Typer`."""

    class LazyGroup(TyperGroup):
        """Replaces the placeholder of a command by the command itself when it is about to be used."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and args[0] in commands:
                self.add_command(load(args[0], commands[args[0]]))
            return super().resolve_command(ctx, args)

    app = typer.Typer(cls=LazyGroup, no_args_is_help=True, **options)
    for name, command in commands.items():
        app.command(name, help=command.summary)(lambda: None)
    return app


def load(name: str, command: LazyCommand) -> Any:
    """The command itself, as click has it."""
    found = getattr(import_module(command.module), command.attribute)
    parent = typer.Typer(add_completion=False)
    parent.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, help=command.summary, no_args_is_help=True)
    else:
        parent.command(name)(found)
    group = typer.main.get_command(parent)
    assert isinstance(group, TyperGroup)
    _refuse_non_finite(group.commands[name])
    return group.commands[name]


def _refuse_non_finite(command: Any) -> None:
    """Have every number that is given to a command or its subcommands checked: most have no maximum."""
    for param in command.params:
        param.callback = _finite(param.callback)
    for inner in getattr(command, "commands", {}).values():
        _refuse_non_finite(inner)


def _finite(callback: Callable[..., Any] | None) -> Callable[..., Any]:
    """A parameter's callback that refuses NaN, and infinity unless it is the parameter's maximum."""

    def check(ctx: Any, param: Any, value: Any) -> Any:
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number) and number != param.max:
                raise InputError(f"{param.opts[0]} is {number}; a finite number is needed")
        return value if callback is None else callback(ctx, param, value)

    return check
