"""`nearcast trace`: one message's story."""

from __future__ import annotations

from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, run_connected
from nearcast.cli.output import JsonOption, print_fields, print_json, print_rows


def command(
    message_id: Annotated[
        str, typer.Argument(metavar="ID", help="Of a publication or a notification of it, of a record, or of a result.")
    ],
    topic: Annotated[str, typer.Option(help="Look only at topics within this pattern.")] = ">",
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Tell what the stores know of a message of a durable topic: published, stored, processed, notified. Of a record
    of a dataset: the results that continuous channels made of its micro-batch; of a result: its records.

    `nearcast pub --json` and `history --json` print ids. To whom it was delivered is not stored.

    Example: nearcast trace car7~1a2b3:tokyo:1763340000000000:17
    """
    from nearcast.client.channel_trace import find_whole_story

    found = run_connected(
        url,
        f"Waiting for the stores by {url}.",
        lambda connection: find_whole_story(connection, message_id, topic),
    ).to_dict()
    if as_json:
        print_json(found)
        return
    events = found.pop("events")
    print_fields(found, False)
    typer.echo()
    rows = [{"after": f"{e['after_ms']:.1f} ms", "what": e["what"], "store": e["where"]} for e in events]
    print_rows(rows, False, "No store has it.")
