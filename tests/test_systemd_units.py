"""The systemd units of deploy/: their commands are ones that the command line accepts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from tests.cli.test_app import loaded_commands

from nearcast.cli.app import COMMANDS
from nearcast.cli.lazy_group import lazy_app

UNITS = sorted((Path(__file__).parents[1] / "deploy/systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_command_of_a_unit_is_accepted(unit: Path) -> None:
    text = unit.read_text()
    (command,) = re.findall(r"^ExecStart=/opt/nearcast/bin/nearcast (.+)$", text, re.MULTILINE)
    known = dict(loaded_commands(typer.main.get_command(lazy_app(COMMANDS))))
    words = shlex.split(command.replace("%i", "tokyo"))
    name = max((name for name in known if words[: len(name.split())] == name.split()), key=len)
    known[name].make_context(name, words[len(name.split()) :])
    assert set(re.findall(r"^Environment=(\w+)=", text, re.MULTILINE)) <= {"NEARCAST_CREDS", "NEARCAST_URL"}
    assert {"Restart=always", "WantedBy=multi-user.target"} <= set(text.splitlines())


def test_there_is_a_unit_for_each_process() -> None:
    names = {"nearcast-site@", "nearcast-coordinator", "nearcast-cluster", "nearcast-web"}
    assert {unit.stem for unit in UNITS} == names
