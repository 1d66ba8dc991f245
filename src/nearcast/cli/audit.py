"""`nearcast audit …`: who changed what."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from nearcast.auth.auth_folder import AuthFolder
from nearcast.cli.coordinator_call import DEFAULT_URL, UrlOption, call_leader
from nearcast.cli.output import JsonOption, print_rows

app = typer.Typer()


@app.command("ls")
def list_entries(
    url: UrlOption = DEFAULT_URL,
    folder: Annotated[
        Path | None, typer.Option(envvar="NEARCAST_AUTH", help="List what was done with this folder of keys instead.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List changes of topics, clients, plans, datasets and channels, the oldest first; or of users and keys.

    Example: nearcast audit ls
    """
    entries = AuthFolder.open(folder).notes() if folder is not None else call_leader(url, "audit", "ls")
    print_rows([_row(entry) for entry in entries], as_json, "Nothing was changed yet.")


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    return {**entry, "time": datetime.fromtimestamp(entry["time"], UTC).isoformat(timespec="seconds")}
