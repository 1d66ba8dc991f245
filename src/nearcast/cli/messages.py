"""`nearcast pub`, `sub`, `history` and `request`: messages from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

import nearcast
from nearcast.cli.coordinator_call import DEFAULT_URL, broker_option, run_connected
from nearcast.cli.output import JsonLinesOption, JsonOption, escape_control, print_fields, print_json, waiting_notice
from nearcast.domain.times import parse_time, span_seconds
from nearcast.errors import InputError, NearcastError

if TYPE_CHECKING:
    from nearcast import Message
    from nearcast.nats.connection import Connection

__all__ = ["history", "pub", "request", "sub"]

UrlOption = Annotated[str, broker_option("The broker to connect to.")]
RawOption = Annotated[bool, typer.Option("--raw", help="Print payloads only, one per line.")]
SinceOption = Annotated[str, typer.Option(help="Since a time (ISO 8601), or a span such as 15m, 2h, 3d.")]


def pub(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    data: Annotated[str, typer.Argument(help="The payload, sent as it is; each line of standard input for -.")] = "-",
    count: Annotated[int, typer.Option(min=1, help="Publish it so many times.")] = 1,
    quorum: Annotated[int | None, typer.Option(min=0, help="Stores that must have it; the topic's own quorum.")] = None,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonLinesOption = False,
) -> None:
    """Publish. Example: nearcast pub gps.car7 '{"kmh": 130}'"""

    async def work() -> None:
        async with _connected(url) as client:
            for payload in _payloads(data, count):
                with waiting_notice(f"Waiting for the stores of {topic}."):
                    receipt = await client.publish(topic, payload, quorum=quorum)
                said = {"topic": topic, "id": receipt.id, "bytes": len(payload), "stores": list(receipt.stores)}
                if as_json:
                    print_json(said)
                else:
                    kept = f", kept by {', '.join(receipt.stores)}" if receipt.stores else ""
                    typer.echo(f"Published {len(payload)} bytes to {topic}{kept}")
            await client.flush()

    uvloop.run(work())


def sub(
    topic: Annotated[str, typer.Argument(help="The topic or pattern; the channel with --channel.")],
    count: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    wait: Annotated[float | None, typer.Option(min=0, help="End when none came for so many seconds.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="The last so many stored messages first.")] = None,
    since: Annotated[str, typer.Option(help="Stored messages of a span such as 15m, 2h, 3d first.")] = "",
    channel: Annotated[bool, typer.Option("--channel", help="Subscribe to a channel instead of a topic.")] = False,
    param: Annotated[list[str] | None, typer.Option(help="name=value of the channel; may be repeated.")] = None,
    url: UrlOption = DEFAULT_URL,
    raw: RawOption = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Print messages as they come, until Ctrl-C. Example: nearcast sub 'gps.*' --last 3"""
    if param and not channel:
        raise InputError("--param is for channels; add --channel")
    if last is not None and since:
        raise InputError("give --last or --since, not both")
    replay = last if last is not None else _span(since)

    async def work() -> None:
        printed, task = 0, asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):  # also in a background job, for which a shell ignores SIGINT
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        async with _connected(url) as client:
            target: dict[str, Any] = {"channel": topic, "params": _params(param)} if channel else {"topic": topic}
            with waiting_notice(f"Waiting for {topic}: it is looked up at {client.home or url}."):
                subscription = await client.subscribe(**target, replay=replay)
            async with subscription as messages:
                if not (raw or as_json):
                    typer.echo(f"Subscribed to {topic} at {client.home or url}. Stop with Ctrl-C.", err=True)
                with contextlib.suppress(TimeoutError, StopAsyncIteration):
                    while count is None or printed < count:
                        async with asyncio.timeout(wait):  # `wait_for` may swallow the signal's cancellation
                            message = await anext(messages)
                        printed += 1
                        _print_message(message, printed, raw, as_json)

    with contextlib.suppress(asyncio.CancelledError):  # Ctrl-C is how it is ended, not a failure
        uvloop.run(work())


def history(
    topic: Annotated[str, typer.Argument(help="The topic or pattern.")],
    last: Annotated[int | None, typer.Option(min=1, help="Only the last so many.")] = None,
    since: SinceOption = "",
    until: Annotated[str, typer.Option(help="Before a time (ISO 8601), or a span ago.")] = "",
    publications: Annotated[
        bool, typer.Option("--publications", help="What was published, not notifications.")
    ] = False,
    url: UrlOption = DEFAULT_URL,
    raw: RawOption = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Print past messages of a durable topic. Example: nearcast history gps.car7 --since 10m"""
    begin, end = parse_time("since", since), parse_time("until", until)

    async def work() -> int:
        n = 0
        async with _connected(url) as client:
            found = client.history(topic, since=begin, until=end, last=last, publications=publications)
            with waiting_notice(f"Waiting for the stores of {topic}.") as over:
                async for message in found:
                    over()
                    n += 1
                    _print_message(message, n, raw, as_json)
        return n

    if not uvloop.run(work()) and not (raw or as_json):
        typer.echo("No message is kept.")


def request(
    subject: Annotated[str, typer.Argument(help="A NATS subject, such as api.coordinator.status.")],
    data: Annotated[str, typer.Argument(help="The payload, sent as it is.")] = "",
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds to wait for the answer.")] = 5.0,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Send a request and print its answer. Example: nearcast request api.coordinator.status"""
    from nats.errors import Error as NatsError
    from nats.errors import NoRespondersError

    if not subject.isprintable():  # among others, a byte of the command line that is no UTF-8
        raise InputError(f"subject is {subject!r}; allowed: printable characters, such as api.coordinator.status")

    async def work(connection: Connection) -> tuple[bytes, dict[str, str]]:
        try:
            answer = await connection.request(subject, os.fsencode(data), timeout=timeout)
        except NoRespondersError:
            raise NearcastError(f"nobody answers requests on {subject}") from None
        except (NatsError, TimeoutError):
            raise NearcastError(f"no answer on {subject} within {timeout:g} s") from None
        return answer.data, dict(answer.headers or {})

    payload, headers = run_connected(url, f"Waiting for an answer on {subject} by {url}.", work)
    text = payload.decode(errors="backslashreplace")
    if as_json:
        print_json({"subject": subject, "headers": headers, "payload": text})
    else:
        if headers:
            print_fields(headers, as_json=False)
        typer.echo(text)
    if "Nats-Service-Error" in headers:
        raise NearcastError(f"{subject}: {headers['Nats-Service-Error']}")


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[nearcast.Client]:
    with waiting_notice(f"Waiting for the broker at {url}.") as over:
        async with nearcast.connect(url) as client:
            over()
            yield client


def _payloads(data: str, count: int) -> Iterator[bytes]:
    """Bytes as they came: an argument need not be text, and what is read is not decoded."""
    if data != "-":
        return (os.fsencode(data) for _ in range(count))
    return (line.removesuffix(b"\n") for line in sys.stdin.buffer for _ in range(count))


def _span(text: str) -> Any:
    if not text:
        return None
    seconds = span_seconds(text)
    if seconds is None:
        raise InputError(f"--since is {text!r}; allowed: a span such as 90s, 15m, 2h, 3d (36500d at most)")
    from datetime import timedelta

    return timedelta(seconds=seconds)


def _params(given: list[str] | None) -> dict[str, Any]:
    """JSON where it can be read as such, so that 5 is a number; else text."""
    import json

    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--param {text!r}; allowed: name=value, such as kind=fire")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _print_message(message: Message, number: int, raw: bool, as_json: bool) -> None:
    payload = message.payload.decode(errors="backslashreplace")
    if raw:
        typer.echo(payload)
    elif as_json:
        print_json(message.to_dict())
    else:
        time = f"  {message.published.astimezone():%H:%M:%S.%f}"[:-3] if message.published else ""
        late = " late" if message.late else ""
        typer.echo(escape_control(f"[#{number}] {message.topic}{time}{late}  {payload}"))
