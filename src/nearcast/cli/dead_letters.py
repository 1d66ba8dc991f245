"""`nearcast dead-letters …`: publications of durable topics that were given up, as the stores keep them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, broker_option, run_connected
from nearcast.cli.output import JsonOption, print_fields, print_rows
from nearcast.client.dead_letters import DeadLetters, LetterFilter, RetryOutcome
from nearcast.domain.times import parse_time
from nearcast.domain.topic import check_pattern
from nearcast.errors import InputError, NearcastError

app = typer.Typer()
T = TypeVar("T")

UrlOption = Annotated[str, broker_option("Any broker from which the stores can be reached.")]
Topic = Annotated[str, typer.Argument(help="The topic, or a pattern.")]
IdOption = Annotated[list[str] | None, typer.Option("--id", help="The id of a dead letter; may be repeated.")]
ReasonOption = Annotated[str, typer.Option(help="A part of the reason.")]
SinceOption = Annotated[str, typer.Option(help="Published since: a time (ISO 8601), or a span such as 15m, 2h, 3d.")]
UntilOption = Annotated[str, typer.Option(help="Published before: a time (ISO 8601), or a span such as 15m, 2h, 3d.")]


@app.command("ls")
def list_letters(
    topic: Topic = ">",
    reason: ReasonOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the oldest publication first. Example: nearcast dead-letters ls 'gps.*' --since 1h"""
    wanted = _filter(topic, None, reason, since, until)
    letters = _run(url, lambda dead_letters: dead_letters.find(wanted))
    print_rows([letter.to_dict() for letter in letters], as_json, "There are no dead letters.")


@app.command()
def show(
    topic: Topic,
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The id of a dead letter.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter with its payload. Example: nearcast dead-letters show gps.car7 ID"""
    letters = _run(url, lambda dead_letters: dead_letters.find(_filter(topic, [letter_id])))
    if not letters:
        raise InputError(f"topic {topic!r} has no dead letter with id {letter_id!r}")
    print_fields(letters[0].to_dict() | {"payload": letters[0].payload.decode(errors="backslashreplace")}, as_json)


@app.command()
def retry(
    topic: Topic,
    letter_ids: IdOption = None,
    reason: ReasonOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    rate: Annotated[float, typer.Option(min=0.1, help="At most so many a second.")] = 100.0,
    force: Annotated[bool, typer.Option("--force", help="Also those that had all their attempts.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Give dead letters to their processors again. One that fails again is a dead letter with one more attempt.

    Example: nearcast dead-letters retry 'gps.*' --reason ValueError
    """
    wanted = _filter(topic, letter_ids, reason, since, until)

    async def work(dead_letters: DeadLetters) -> list[RetryOutcome]:
        letters = await dead_letters.find(wanted)
        return [outcome async for outcome in dead_letters.retry(letters, rate, force=force)]

    outcomes = _run(url, work)
    rows = [
        {"id": one.letter.id, "topic": one.letter.topic, "attempts": one.letter.attempts, "outcome": one.outcome}
        for one in outcomes
    ]
    print_rows(rows, as_json, "There are no dead letters.")
    refused = sum(not one.sent for one in outcomes)
    if refused:
        raise NearcastError(f"{refused} of {len(outcomes)} dead letters were not tried again")


@app.command()
def drop(
    topic: Topic,
    letter_ids: IdOption = None,
    reason: ReasonOption = "",
    since: SinceOption = "",
    until: UntilOption = "",
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Drop dead letters: they are not listed any more. The publications stay in the history.

    Example: nearcast dead-letters drop 'gps.*' --since 1h
    """
    wanted = _filter(topic, letter_ids, reason, since, until)

    async def work(dead_letters: DeadLetters) -> int:
        return await dead_letters.drop(await dead_letters.find(wanted))

    print_fields({"topic": topic, "dropped": _run(url, work)}, as_json)


def _run(url: str, work: Callable[[DeadLetters], Awaitable[T]]) -> T:
    return run_connected(url, f"Waiting for the stores by {url}.", lambda connection: work(DeadLetters(connection)))


def _filter(
    topic: str, letter_ids: list[str] | None, reason: str = "", since: str = "", until: str = ""
) -> LetterFilter:
    check_pattern(topic)
    return LetterFilter(
        topic, frozenset(letter_ids or ()), reason, _microseconds("since", since), _microseconds("until", until)
    )


def _microseconds(name: str, text: str) -> int | None:
    when = parse_time(name, text)
    return round(when.timestamp() * 1e6) if when is not None else None
