"""The `nearcast` command: puts the nouns together and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import sys

import typer

from nearcast.errors import InputError, NearcastError

__all__ = ["main"]

# A module is imported only when its noun or command is used, so that `nearcast site run` does not pay for the
# planners' libraries.

# noun -> module with a typer application named `app`
NOUNS = {
    "channel": ("nearcast.cli.channel", "Parameterised queries over datasets: add, drop, list."),
    "client": ("nearcast.cli.client", "Registered clients and their homes."),
    "cluster": ("nearcast.cli.cluster", "Run the data cluster: datasets and channels on Spark."),
    "coordinates": ("nearcast.cli.coordinates", "Network coordinates from measured round trips."),
    "coordinator": ("nearcast.cli.coordinator", "Run a coordinator, or ask the one that leads."),
    "dataset": ("nearcast.cli.dataset", "What the data cluster keeps: add, load, drop, list."),
    "lab": ("nearcast.cli.lab", "A wide area on one machine: namespaces with delays between them."),
    "model": ("nearcast.cli.model", "Learn how slow topics make each other when they share a worker."),
    "plan": ("nearcast.cli.plan", "SiteCoordinate clients, topics, replicas and subscribers: tables in, a plan out."),
    "profile": ("nearcast.cli.profile", "Measure what a worker and a broker can take."),
    "site": ("nearcast.cli.site", "Run one site on this machine; see all of them."),
    "topic": ("nearcast.cli.topic", "Registered topics: see, add, remove, move."),
    "workload": ("nearcast.cli.workload", "Make the papers' workloads, look at them, play them."),
}

# command -> module with a function named `command`
COMMANDS = {
    "demo": ("nearcast.cli.demo", "Three sites, fifty pedestrians and cars, warnings: watch it work for 20 seconds."),
    "feed": ("nearcast.cli.feed", "Feed the records of a file to a dataset."),
    "up": ("nearcast.cli.up", "Run all sites of a configuration on this machine."),
}


def build(wanted: str | None) -> typer.Typer:
    """The application; only the wanted module is loaded, the others are named for the help."""
    app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

    @app.callback()
    def root() -> None:
        """Publish, process and subscribe at the edge."""

    for noun, (module, summary) in NOUNS.items():
        loaded = importlib.import_module(module).app if noun == wanted else typer.Typer()
        app.add_typer(loaded, name=noun, help=summary, no_args_is_help=True)
    for command, (module, summary) in COMMANDS.items():
        function = importlib.import_module(module).command if command == wanted else lambda: None
        app.command(command, help=summary)(function)
    return app


def main() -> None:
    """Run the command line. Exit code 2: the input was refused; 1: it could not be done."""
    wanted = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build(wanted)()
    except InputError as error:
        print(f"nearcast: {error}", file=sys.stderr)
        sys.exit(2)
    except NearcastError as error:
        print(f"nearcast: {error}", file=sys.stderr)
        sys.exit(1)
