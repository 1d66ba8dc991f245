"""`nearcast dataset …`: the datasets of the data cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.options import ConfigOption
from nearcast.cli.output import JsonOption, print_done, print_fields, print_rows, waiting_notice
from nearcast.domain.dataset import DatasetSpec

if TYPE_CHECKING:
    from nearcast.cluster.admin import Admin

app = typer.Typer()
NameArgument = Annotated[str, typer.Argument(help="The dataset.")]


@app.command("ls")
def list_datasets(config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """All datasets. Example: nearcast dataset ls"""
    with admin(config) as at:
        rows = [
            {"name": spec.name, "source": spec.source, "key": spec.key, "version": spec.version, "schema": spec.schema}
            for spec in at.datasets().values()
        ]
    print_rows(rows, as_json, "There is no dataset. Add one with: nearcast dataset add")


@app.command()
def info(name: NameArgument, config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """One dataset with all its settings. Example: nearcast dataset info reports"""
    with admin(config) as at:
        print_fields(fields(at.dataset(name)), as_json)


@app.command()
def add(
    name: NameArgument,
    schema: Annotated[
        str, typer.Option(help="Columns as DDL ('id STRING NOT NULL, at TIMESTAMP'), or a file with it.")
    ],
    source: Annotated[
        str, typer.Option("--from", help="fed.<name> or pub.<topic>; without it the dataset is static.")
    ] = "",
    key: Annotated[str, typer.Option(help="Queries see the latest record of each value of this column.")] = "",
    time: Annotated[
        str, typer.Option(help="The TIMESTAMP column with the time of a record; else its time of arrival.")
    ] = "",
    keep: Annotated[float | None, typer.Option(help="Seconds to keep records.")] = None,
    late_after: Annotated[
        float | None, typer.Option(help="Refuse records this many seconds behind the latest of their publisher.")
    ] = None,
    future_limit: Annotated[
        float | None, typer.Option(help="Refuse records dated this many seconds after they arrived.")
    ] = None,
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """Add a dataset.

    Example: nearcast dataset add reports --schema 'id STRING NOT NULL, kind STRING' --from fed.reports
    """
    from nearcast.cluster.datasets.schema import read_schema

    ddl = read_schema(schema, f"dataset {name}")
    with admin(config) as at:
        at.add_dataset(DatasetSpec(name, ddl, source, key, time, keep, late_after, future_limit))
        added = fields(at.dataset(name))
    print_done(f"Dataset {name} is added.", added, as_json)


@app.command()
def load(
    name: NameArgument,
    file: Annotated[Path, typer.Argument(help="CSV with a header, Parquet, or one JSON object per line.")],
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """Replace the content of a static dataset by a file. Example: nearcast dataset load shelters shelters.csv"""
    with admin(config) as at:
        rows = at.load_dataset(name, file)
    print_done(f"Dataset {name} has {rows} rows.", {"name": name, "rows": rows}, as_json)


@app.command()
def alter(
    name: NameArgument,
    add_column: Annotated[
        str, typer.Option(help="Columns to add as DDL, such as 'note STRING'; older records have null.")
    ],
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """Add columns to a dataset. Example: nearcast dataset alter reports --add-column 'note STRING'"""
    with admin(config) as at:
        altered = at.alter_dataset(name, add_column)
    print_done(f"Dataset {name} has the columns: {altered.schema}", fields(altered), as_json)


@app.command()
def backfill(
    name: NameArgument,
    file: Annotated[
        Path, typer.Argument(help="CSV, Parquet, one JSON object per line, or the folder of a Delta table.")
    ],
    config: ConfigOption = Path("nearcast.toml"),
    as_json: JsonOption = False,
) -> None:
    """Put past records into a dataset; no channel is notified of them.

    Example: nearcast dataset backfill reports last-year.parquet
    """
    with admin(config) as at:
        rows = at.backfill_dataset(name, file)
    print_done(f"Dataset {name} has {rows} more records.", {"name": name, "rows": rows}, as_json)


@app.command("rm")
def remove(name: NameArgument, config: ConfigOption = Path("nearcast.toml"), as_json: JsonOption = False) -> None:
    """Remove a dataset that no channel reads. Its files stay in the warehouse. Example: nearcast dataset rm reports"""
    with admin(config) as at:
        at.remove_dataset(name)
    print_done(f"Dataset {name} is removed.", {"name": name}, as_json)


@contextlib.contextmanager
def admin(config: Path) -> Iterator[Admin]:
    """The catalog of a deployment; what takes long is said."""
    from nearcast.cli.deployment_credentials import use_credentials
    from nearcast.cluster.admin import Admin
    from nearcast.config.deployment_file import read_configuration

    deployment = use_credentials(read_configuration(config), "admin")
    url = deployment.cloud().url
    with waiting_notice(f"Waiting for the data cluster by {url}. If none runs, Spark is started: some ten seconds."):
        yield Admin(deployment)


def fields(spec: object) -> dict[str, Any]:
    """The fields of a dataset or a channel for printing."""
    import msgspec

    return {name: value for name, value in msgspec.to_builtins(spec).items() if name != "created"}
