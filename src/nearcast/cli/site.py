"""`nearcast site …`: one site on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.asking import DEFAULT_URL, JsonOption, UrlOption, ask, print_fields, print_rows
from nearcast.cli.serve import ConfigOption, RunDirectoryOption, serve

app = typer.Typer()


@app.callback()
def root() -> None:
    """Run one site on this machine; see all of them."""


@app.command()
def run(
    name: Annotated[str, typer.Option(help="Which site of the configuration this machine is.")],
    config: ConfigOption = Path("nearcast.toml"),
    run_directory: RunDirectoryOption = None,
) -> None:
    """Start the site's broker, store and workers, keep them up, and stop them on Ctrl-C."""
    serve(config, run_directory, [name])


@app.command("ls")
def list_sites(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """All sites the coordinator knows."""
    print_rows(ask(url, "site", "ls"), as_json, "No site has registered yet; sites do so within their report period.")


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """One site: its last report."""
    print_fields(ask(url, "site", "info", name=name), as_json)
