"""`nearcast site …`: run a site on this machine, list the registered ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_fields, print_json, print_rows
from nearcast.cli.serve import ConfigOption, RunDirectoryOption, serve
from nearcast.cli.site_info import site_fields, topic_rows, worker_rows

app = typer.Typer()


@app.command()
def run(
    name: Annotated[str, typer.Option(help="Which site of the configuration this machine is.")],
    config: ConfigOption = Path("nearcast.toml"),
    run_directory: RunDirectoryOption = None,
) -> None:
    """Start the site's broker, store and workers, keep them up, and stop them on Ctrl-C.

    Example: nearcast site run --config nearcast.toml --name tokyo
    """
    serve(config, run_directory, [name])


@app.command("ls")
def list_sites(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the registered sites. Example: nearcast site ls"""
    rows = call_leader(url, "site", "ls")
    if not as_json:
        rows = [{**row, "messages_out": f"{row['messages_out']:.1f}/s", "cpu": f"{row['cpu']:.1%}"} for row in rows]
    print_rows(rows, as_json, "No site is registered. A site registers with its next report.")


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="The site's name.")],
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show one site and its last report. Example: nearcast site info tokyo"""
    found = call_leader(url, "site", "info", name=name)
    if as_json:
        print_json(found)
        return
    print_fields(site_fields(found), False)
    if "broker" in found:
        typer.echo()
        print_rows(topic_rows(found), False, "No client of this site uses a topic.")
        typer.echo()
        print_rows(worker_rows(found), False, "No worker of this site has a topic.")
