"""`nearcast site …`: run a site on this machine, list the registered ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_fields, print_rows
from nearcast.cli.serve import ConfigOption, RunDirectoryOption, serve

app = typer.Typer()


@app.callback()
def root() -> None:
    """Run one site on this machine; list all of them."""


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
    """List the registered sites."""
    print_rows(call_leader(url, "site", "ls"), as_json, "No site is registered. A site registers with its next report.")


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show one site and its last report."""
    print_fields(call_leader(url, "site", "info", name=name), as_json)
