"""The `nearcast` command: puts the nouns together and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import sys

import typer

from nearcast.domain.errors import InputError, NearcastError

__all__ = ["main"]

# noun -> module with a typer application named `app`. A module is imported only when its noun is used,
# so that `nearcast site run` does not pay for the planners' libraries.
NOUNS = {
    "plan": ("nearcast.cli.plan", "Place clients, topics, replicas and subscribers: tables in, a plan out."),
    "workload": (
        "nearcast.cli.workload",
        "Make the papers' workloads, from real files or made up, and look at them.",
    ),
}


def build(nouns: dict[str, tuple[str, str]], wanted: str | None) -> typer.Typer:
    """The application; only the wanted noun's module is loaded, the others are named for the help."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def root() -> None:
        """Publish, process and subscribe at the edge."""

    for noun, (module, summary) in nouns.items():
        loaded = importlib.import_module(module).app if noun == wanted else typer.Typer()
        app.add_typer(loaded, name=noun, help=summary, no_args_is_help=True)
    return app


def main() -> None:
    """Run the command line. Exit code 2: the input was refused; 1: it could not be done."""
    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build(NOUNS, wanted)()
    except InputError as error:
        print(f"nearcast: {error}", file=sys.stderr)
        sys.exit(2)
    except NearcastError as error:
        print(f"nearcast: {error}", file=sys.stderr)
        sys.exit(1)
