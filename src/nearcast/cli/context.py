"""`nearcast context …`: named deployments, so that commands need no `--url` and no credentials each time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from nearcast.cli.output import JsonOption, print_done, print_rows
from nearcast.domain.names import check_name
from nearcast.errors import InputError
from nearcast.nats.identity.credentials import VARIABLE, read_credentials, write_secret

app = typer.Typer()
URL_VARIABLE = "NEARCAST_URL"


class Context(msgspec.Struct, frozen=True):
    """Where a deployment is, and who this user is there."""

    url: str
    credentials: str = ""


class _ContextFile(msgspec.Struct):
    selected: str = ""
    contexts: dict[str, Context] = {}


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="A name for the deployment.")],
    url: Annotated[str, typer.Option(help="A broker of it.")],
    creds: Annotated[Path | None, typer.Option(help="Your credentials there.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a deployment, or change one. The first one is selected.

    Example: nearcast context add city --url nats://127.0.0.1:4222 --creds admin.creds
    """
    file = _read()
    if creds is not None:
        read_credentials(creds)
    file.contexts[check_name(name, "context")] = Context(url, str(creds.resolve()) if creds is not None else "")
    file.selected = file.selected or name
    _write(file)
    _print_selected(file, f"Context {name} is added.", as_json)


@app.command()
def use(name: Annotated[str, typer.Argument(help="The deployment.")], as_json: JsonOption = False) -> None:
    """Select the deployment that commands talk to. Example: nearcast context use city"""
    file = _read()
    if name not in file.contexts:
        raise InputError(f"context is {name!r}; allowed: {', '.join(sorted(file.contexts)) or 'none was added yet'}")
    file.selected = name
    _write(file)
    _print_selected(file, "", as_json)


@app.command("ls")
def list_contexts(as_json: JsonOption = False) -> None:
    """List the deployments. Example: nearcast context ls"""
    file = _read()
    rows = [
        {"context": name, "url": one.url, "credentials": one.credentials, "selected": name == file.selected}
        for name, one in sorted(file.contexts.items())
    ]
    print_rows(rows, as_json, "There is no context. Add one with: nearcast context add")


def _print_selected(file: _ContextFile, sentence: str, as_json: bool) -> None:
    told = f"{sentence} Commands talk to {file.selected}, {file.contexts[file.selected].url}.".strip()
    print_done(told, {"selected": file.selected, "url": file.contexts[file.selected].url}, as_json)


def apply_context() -> None:
    """Let the selected deployment stand for what the environment does not say."""
    if URL_VARIABLE in os.environ or VARIABLE in os.environ or not _path().is_file():
        return
    file = _read()
    selected = file.contexts.get(file.selected)
    if selected is not None:
        os.environ[URL_VARIABLE] = selected.url
        if selected.credentials:
            os.environ[VARIABLE] = selected.credentials


def _path() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nearcast" / "contexts.json"


def _read() -> _ContextFile:
    path = _path()
    if not path.is_file():
        return _ContextFile()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_ContextFile)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} cannot be read: {error}; remove it, and add contexts again") from None


def _write(file: _ContextFile) -> None:
    write_secret(_path(), msgspec.json.format(msgspec.json.encode(file)).decode())
