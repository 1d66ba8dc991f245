"""The `nearcast` command: its commands by name, and errors as one line and an exit code."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

from nearcast.cli.lazy_group import LazyCommand, lazy_app, load
from nearcast.errors import InputError, NearcastError

__all__ = ["COMMANDS", "EXTRAS", "main"]


def _group(name: str, summary: str) -> LazyCommand:
    return LazyCommand(f"nearcast.cli.{name}", "app", summary)


def _command(name: str, summary: str) -> LazyCommand:
    return LazyCommand(f"nearcast.cli.{name}", "command", summary)


COMMANDS = {
    "audit": _group("audit", "Who changed what."),
    "auth": _group("auth", "Keys, users, tenants and certificates: who may do what."),
    "channel": _group("channel", "Parameterised queries over datasets: list, add, remove."),
    "client": _group("client", "Registered clients and their homes."),
    "cluster": _group("cluster", "Run the data cluster: datasets and channels on Spark."),
    "context": _group("context", "Named deployments: add one, choose one."),
    "coordinates": _group("coordinates", "Network coordinates from measured round trips."),
    "coordinator": _group("coordinator", "Run a coordinator, or show the state of the leader."),
    "dataset": _group("dataset", "Datasets of the data cluster: list, add, load, remove."),
    "dead-letters": _group("dead_letters", "Publications that were given up: list, show, retry, drop."),
    "lab": _group("lab", "A wide area on one machine: network namespaces with delays between them."),
    "model": _group("model", "Train a model of the latency of topics that share a worker."),
    "plan": _group("plan", "Plan the placement of clients, topics, replicas and subscribers from tables."),
    "profile": _group("profile", "Measure the capacity of a worker and of a broker."),
    "site": _group("site", "Run one site on this machine; list all sites."),
    "topic": _group("topic", "Registered topics: list, add, remove, move."),
    "workload": _group("workload", "Generate the papers' workloads, plot them, play them."),
    "bench": _command("bench", "Measure how many messages a second go through a broker, and their latency."),
    "dev": _command("dev", "Run the sites here, reload processors when a file is saved, print messages."),
    "history": LazyCommand("nearcast.cli.messages", "history", "Past messages of a durable topic."),
    "init": _command("init", "Write a small working project."),
    "pub": LazyCommand("nearcast.cli.messages", "pub", "Publish a message."),
    "request": LazyCommand("nearcast.cli.messages", "request", "Send a request to a service, print its answer."),
    "sub": LazyCommand("nearcast.cli.messages", "sub", "Print the messages of a topic or channel as they come."),
    "demo": _command("demo", "A city on one machine: five edge sites, a cloud, a story in five acts."),
    "feed": _command("feed", "Feed the records of a file to a dataset."),
    "trace": _command("trace", "One message's story: published, stored, processed, notified."),
    "web": _command("web", "Serve the console and REST."),
    "up": LazyCommand("nearcast.cli.serve", "up", "Run all sites of a configuration on this machine."),
}

# The extra that installs a package, unless the command has one that installs everything it needs.
EXTRAS = {
    **dict.fromkeys(("numpy", "ortools", "pyarrow", "rustworkx", "scipy", "sklearn", "threadpoolctl"), "plan"),
    **dict.fromkeys(("deltalake", "pandas", "pyspark", "sqlglot"), "cluster"),
    **dict.fromkeys(("matplotlib", "paho"), "lab"),
    **dict.fromkeys(("fastapi", "nicegui", "uvicorn"), "web"),
    "opentelemetry": "otel",
}
COMMAND_EXTRAS = {
    **dict.fromkeys(("channel", "cluster", "dataset", "feed"), "cluster"),
    **dict.fromkeys(("demo", "lab", "profile", "workload"), "lab"),
    "web": "web",
}


# Typer builds these options with Pydantic, which takes as long to import as all the rest: only where they are used.
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")
COMPLETION_VARIABLE = "_NEARCAST_COMPLETE"


def main() -> None:
    """Run the command line.

    Exit code 2: the input was refused or an extra is missing; 1: any other failure; 130: Ctrl-C before it was done.
    """
    try:
        _run(sys.argv[1:])
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = COMMAND_EXTRAS.get(sys.argv[1], EXTRAS[package])
        _exit(2, f'{package} is not installed; install it with: pip install "nearcast[{extra}]"')
    except KeyboardInterrupt:  # while a command is imported; Typer does the same once it runs
        sys.exit(130)
    except InputError as error:
        _exit(2, str(error))
    except NearcastError as error:
        _exit(1, str(error))


def _run(words: list[str]) -> None:
    if words[:1] != ["context"] and context_exists():
        from nearcast.cli.context import apply_context

        apply_context()
    if words[:1] == ["--version"]:
        print(f"nearcast {version('nearcast')}")
        return
    completion = COMPLETION_VARIABLE in os.environ or any(word in COMPLETION_OPTIONS for word in words[:1])
    if words and words[0] in COMMANDS and not completion:
        load(words[0], COMMANDS[words[0]]).main(args=words[1:], prog_name=f"nearcast {words[0]}")
    app = lazy_app(
        COMMANDS,
        add_completion=completion,
        pretty_exceptions_enable=False,
        help="Publish, process and subscribe at the edge.",
        epilog="The version: nearcast --version. Completion for bash, zsh and fish: nearcast --install-completion bash",
    )
    app(prog_name="nearcast")


def context_exists() -> bool:
    """Whether a context was ever added; most have none, and do not pay for reading it."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.isfile(os.path.join(folder, "nearcast", "contexts.json"))


def _exit(code: int, message: str) -> None:
    print(f"nearcast: {message}", file=sys.stderr)
    sys.exit(code)
