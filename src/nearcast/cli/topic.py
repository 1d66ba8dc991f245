"""`nearcast topic …`: the registered topics, where their processors run, and where they are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_fields, print_rows
from nearcast.config.validation import to_struct
from nearcast.domain.topic import TopicSpec
from nearcast.errors import NearcastError

app = typer.Typer()
Name = Annotated[str, typer.Argument(help="The topic, or the pattern of a family of topics.")]


@app.command("ls")
def list_topics(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the registered topics. Example: nearcast topic ls"""
    print_rows(call_leader(url, "topic", "ls"), as_json, "No topic is registered. Add one with: nearcast topic add")


@app.command()
def info(name: Name, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show one topic: its workers, replicas and latency. Example: nearcast topic info 'gps.*'"""
    print_fields(call_leader(url, "topic", "info", name=name), as_json)


@app.command()
def add(
    name: Name,
    managed_by: Annotated[
        list[str] | None, typer.Option(help="A site that runs its processor; may be repeated.")
    ] = None,
    replica: Annotated[list[str] | None, typer.Option(help="A site whose store keeps it; may be repeated.")] = None,
    quorum: Annotated[int, typer.Option(help="Stores that must have a message before `publish` returns.")] = 0,
    bound_ms: Annotated[float | None, typer.Option(help="The latency bound, from publisher to subscriber.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Register a topic; its sites start it after their next report.

    Example: nearcast topic add 'gps.*' --managed-by tokyo --replica tokyo --quorum 1 --bound-ms 40
    """
    spec = {
        "name": name, "managed_by": managed_by or [], "replicas": replica or [], "quorum": quorum, "bound_ms": bound_ms,
    }  # fmt: skip
    to_struct(spec, TopicSpec)  # before it is sent: JSON has no NaN
    print_fields(call_leader(url, "topic", "add", spec=spec), as_json)


@app.command("rm")
def remove(name: Name, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Unregister a topic; its sites stop it. Stored messages are kept. Example: nearcast topic rm 'gps.*'"""
    call_leader(url, "topic", "rm", name=name)
    print_fields({"topic": name, "outcome": "removed"}, as_json)


@app.command()
def move(
    name: Name,
    to: Annotated[list[str], typer.Option(help="A site that runs it from now on; may be repeated.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Move a topic's processor to other sites without losing messages.

    Example: nearcast topic move 'gps.*' --to osaka
    """
    answer = call_leader(url, "topic", "move", name=name, to=to)
    print_fields(answer, as_json)
    if answer["outcome"] != "done":
        raise NearcastError(f"topic {name} was not moved: {answer['reason']}")


@app.command()
def replicas(
    name: Name,
    to: Annotated[list[str], typer.Option(help="A site whose store keeps it from now on; may be repeated.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Have other stores keep a topic, as many as now or more. They copy what is kept before an old one is left out.

    What takes longer than some seconds goes on: `nearcast plan history` has its end.

    Example: nearcast topic replicas 'gps.*' --to osaka --to cloud
    """
    answer = call_leader(url, "topic", "replicas", name=name, to=to)
    print_fields(answer, as_json)
    if answer["outcome"] not in ("done", "copying"):
        raise NearcastError(f"the replicas of topic {name} were not moved: {answer['reason']}")
