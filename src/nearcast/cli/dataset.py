"""`nearcast dataset …`: what the data cluster keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nearcast.cli.serve import ConfigOption
from nearcast.domain.dataset import DatasetSpec

app = typer.Typer()
NameArgument = Annotated[str, typer.Argument(help="The dataset.")]


@app.callback()
def root() -> None:
    """What the data cluster keeps."""


@app.command()
def add(
    name: NameArgument,
    schema: Annotated[
        str, typer.Option(help="Columns as DDL ('id STRING NOT NULL, at TIMESTAMP'), or a file with it.")
    ],
    source: Annotated[str, typer.Option("--from", help="fed.<name> or pub.<topic>; nothing: loaded as a whole.")] = "",
    key: Annotated[str, typer.Option(help="Queries see the latest record of each value of this column.")] = "",
    time: Annotated[str, typer.Option(help="The column that says when a record happened; else its arrival.")] = "",
    keep: Annotated[float | None, typer.Option(help="Seconds to keep records.")] = None,
    late_after: Annotated[float | None, typer.Option(help="Refuse records so many seconds behind the latest.")] = None,
    config: ConfigOption = Path("nearcast.toml"),
) -> None:
    """Add a dataset."""
    from nearcast.cluster.datasets.schema import read_schema

    ddl = read_schema(schema, f"dataset {name}")
    _admin(config).add_dataset(DatasetSpec(name, ddl, source, key, time, keep, late_after))
    typer.echo(f"dataset {name} added")


@app.command()
def load(
    name: NameArgument,
    file: Annotated[Path, typer.Argument(help="CSV with a header, Parquet, or one JSON object per line.")],
    config: ConfigOption = Path("nearcast.toml"),
) -> None:
    """Replace a static dataset by a file, all at once."""
    typer.echo(f"dataset {name}: {_admin(config).load_dataset(name, file)} rows")


@app.command()
def drop(name: NameArgument, config: ConfigOption = Path("nearcast.toml")) -> None:
    """Drop a dataset that no channel reads. Its files stay in the warehouse."""
    _admin(config).drop_dataset(name)
    typer.echo(f"dataset {name} dropped")


@app.command("list")
def list_(config: ConfigOption = Path("nearcast.toml")) -> None:
    """All datasets."""
    table = Table("dataset", "from", "key", "schema")
    for spec in _admin(config).datasets().values():
        table.add_row(spec.name, spec.source or f"loaded, version {spec.version}", spec.key, spec.schema)
    Console().print(table)


def _admin(config: Path):  # type: ignore[no-untyped-def]
    from nearcast.cluster.admin import Admin
    from nearcast.config.deployment_file import read_configuration

    return Admin(read_configuration(config))
