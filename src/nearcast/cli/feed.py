"""`nearcast feed`: feeds the records of a file to a dataset."""

from __future__ import annotations

import asyncio
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
import uvloop

import nearcast
from nearcast.cli.coordinator_call import DEFAULT_URL, broker_option
from nearcast.cli.output import JsonOption, print_done, waiting_notice
from nearcast.client.client import Client
from nearcast.errors import InputError, NearcastError
from nearcast.nats import subjects
from nearcast.nats.catalog import Catalog
from nearcast.nats.rpc import call
from nearcast.protocol.services import ChannelAnswer, DatasetRequest

_AT_ONCE = 1000
_CATALOG_LIMIT = 5.0


def command(
    dataset: Annotated[str, typer.Argument(help="The dataset.")],
    file: Annotated[Path, typer.Argument(help="A JSON object per line, CSV with a header, or Parquet.")],
    url: Annotated[str, broker_option("The broker to feed through.")] = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Feed the records of a file; the cloud's store acknowledges each. Example: nearcast feed reports reports.jsonl"""
    with waiting_notice(f"Waiting for the cloud's store by {url}, which acknowledges each record."):
        fed = uvloop.run(_feed(dataset, file, url))
    print_done(f"Dataset {dataset} was fed {fed} records.", {"dataset": dataset, "records": fed}, as_json)


async def _feed(dataset: str, file: Path, url: str) -> int:
    from nearcast.cluster.datasets.record_files import read_records

    fed = 0
    async with nearcast.connect(url) as client:
        records = read_records(file, await column_kinds_of(client, dataset) if file.suffix == ".csv" else None)
        while some := list(islice(records, _AT_ONCE)):
            if not fed:
                await client.feed(dataset, some[0])  # alone: if there is no such dataset, one error is enough
            await asyncio.gather(*(client.feed(dataset, record) for record in some[0 if fed else 1 :]))
            fed += len(some)
    return fed


async def column_kinds_of(client: Client, dataset: str) -> dict[str, str] | None:
    """The types of a dataset's columns, from the catalog; None, and a notice, when it cannot be read."""
    from nearcast.cluster.datasets.schema import column_kinds

    connection = client.connection
    subject = subjects.channels_service(connection.server_name, "dataset")
    try:
        store = (await call(connection, subject, DatasetRequest(dataset), ChannelAnswer)).store
        async with asyncio.timeout(_CATALOG_LIMIT):
            spec = await Catalog(connection, store).dataset(dataset)
    except InputError:
        raise
    except (NearcastError, TimeoutError) as error:
        reason = str(error) or "no answer; may this user read the catalog?"
        notice = (
            f"The schema of dataset {dataset} cannot be read ({reason}): the types of cells are guessed from the file."
        )
        typer.echo(notice, err=True)
        return None
    return None if spec is None else column_kinds(spec.schema)
