"""The command line as a whole: what it loads, what it completes, what it says when an extra is not installed."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from nearcast.cli.app import COMMANDS, EXTRAS, main
from nearcast.cli.lazy_group import lazy_app, load
from nearcast.cli.plan import COMMANDS as PLANS

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAVY = {*EXTRAS, "msgspec", "nats", "pydantic"}
# Names of modules where a distribution is called otherwise.
MODULE_OF = {
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry", "opentelemetry-sdk": "opentelemetry",
    "paho-mqtt": "paho", "scikit-learn": "sklearn",
}  # fmt: skip
# Commands whose packages are imported by the module itself, so that even --help needs them, or only when they run.
NEEDS_AN_EXTRA = [
    ("plan homes --help", "numpy", "plan"),
    ("plan colocation --help", "numpy", "plan"),
    ("plan partition --help", "numpy", "plan"),
    ("plan stores --help", "numpy", "plan"),
    ("plan balance --help", "numpy", "plan"),
    ("coordinates fit --help", "numpy", "plan"),
    ("model simulate --help", "numpy", "plan"),
    ("coordinator run --site cloud", "numpy", "plan"),
    ("demo --act 1", "numpy", "lab"),
    ("workload follow --out x", "numpy", "lab"),
    ("profile worker --out x.csv", "numpy", "lab"),
    ("profile broker", "numpy", "lab"),
    ("lab wan up --topology x.csv", "numpy", "lab"),
    ("cluster run --config cluster.toml", "pyarrow", "cluster"),
]

# Runs several commands in one process in which some packages cannot be imported, and prints what came of each.
BLOCKED = """
import contextlib, io, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked = set(json.loads(sys.argv[1]))
commands = json.loads(sys.argv[2])
sys.meta_path.insert(0, Blocker())
from nearcast.cli import main

results = {}
for command in commands:
    sys.argv = ["nearcast", *command.split()]
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = repr(error)
    results[command] = [code or 0, err.getvalue()]
print(json.dumps(results))
"""


def without_extras(commands: list[str], folder: Path) -> dict[str, tuple[object, str]]:
    """Exit code and standard error of commands in an installation without extras."""
    arguments = [json.dumps(sorted(EXTRAS)), json.dumps(commands)]
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    found: dict[str, tuple[object, str]] = json.loads(done.stdout)
    return found


def leaf_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command below a group, as it is typed."""
    for name in group.commands:
        command = group.resolve_command(typer.Context(group), [name])[1]
        if hasattr(command, "commands"):
            yield from leaf_commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


def loaded_commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command below a group, with how it is typed."""
    for name in group.commands:
        command = group.resolve_command(typer.Context(group), [name])[1]
        if hasattr(command, "commands"):
            yield from loaded_commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


# Commands that run until Ctrl-C, or say one sentence.
WITHOUT_JSON = (
    "cluster run", "coordinator run", "dev", "init", "lab wan down", "lab wan run", "lab wan set", "site run", "up",
    "web",
)  # fmt: skip


def test_every_command_has_an_example_that_it_accepts_and_json_where_it_prints_values() -> None:
    root = typer.main.get_command(lazy_app(COMMANDS))
    commands = dict(loaded_commands(root))
    assert len(commands) > 90
    for name, command in commands.items():
        found = re.search(r"Example: nearcast ([^\n]+)", command.help or "")
        assert found is not None, f"{name} has no example"
        words = shlex.split(found[1].partition(", then")[0])
        assert words[: len(name.split())] == name.split(), f"the example of {name} is of another command"
        command.make_context(name, words[len(name.split()) :])
        options = {option for parameter in command.params for option in parameter.opts}
        listed = any(name == known or name.startswith(f"{known} ") for known in WITHOUT_JSON)
        assert ("--json" in options) != listed, name


def completed(line: str, shell: str = "bash") -> list[str]:
    """What a shell offers at the end of a line."""
    words = line.split(" ")
    environment = os.environ | {"_NEARCAST_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    command = [sys.executable, "-c", "from nearcast.cli import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"], ["plan"]])
def test_help_loads_neither_planners_nor_the_network_client(words: list[str]) -> None:
    code = (
        "import json, sys\nfrom nearcast.cli import main\ntry: main()\n"
        "except SystemExit: print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert not HEAVY.intersection(json.loads(done.stdout.splitlines()[-1]))


def test_without_an_extra_its_name_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("node,latitude,longitude\na,1,1\nb,2,2\n")
    (tmp_path / "stores" / "c").mkdir(parents=True)
    (tmp_path / "cluster.toml").write_text(
        '[[site]]\nname = "c"\nkind = "cloud"\n[site.store]\ndirectory = "stores/c"\n[cluster]\nwarehouse = "w"\n'
    )
    results = without_extras([command for command, *_ in NEEDS_AN_EXTRA], tmp_path)
    for command, package, extra in NEEDS_AN_EXTRA:
        expected = f'nearcast: {package} is not installed; install it with: pip install "nearcast[{extra}]"\n'
        assert results[command] == [2, expected], command


def test_no_command_fails_with_a_traceback_without_extras(tmp_path: Path) -> None:
    root = typer.main.get_command(lazy_app(COMMANDS))
    results = without_extras([f"{command} --help" for command in leaf_commands(root)], tmp_path)
    assert len(results) > 40
    for command, (code, said) in results.items():
        assert code == 0 or (code == 2 and "is not installed; install it with: pip install" in said), (command, said)


def test_every_package_of_an_extra_is_known() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    provided: dict[str, set[str]] = {}

    def add(extra: str, requirements: list[str]) -> None:
        for requirement in requirements:
            name = requirement.split(">")[0]
            if name.startswith("nearcast["):
                for included in name.removeprefix("nearcast[").removesuffix("]").split(","):
                    add(extra, extras[included])
            else:
                provided.setdefault(MODULE_OF.get(name, name), set()).add(extra)

    for extra, requirements in extras.items():
        add(extra, requirements)
    assert set(EXTRAS) == set(provided)
    for package, extra in EXTRAS.items():
        assert extra in provided[package]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_options_and_choices(shell: str) -> None:
    assert any("homes" in line for line in completed("nearcast plan ho", shell))
    assert any("--members" in line for line in completed("nearcast plan homes --mem", shell))
    assert any("one_topic_one_site" in line for line in completed("nearcast plan homes --method one", shell))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_installed(shell: str, tmp_path: Path) -> None:
    environment = os.environ | {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-c", "from nearcast.cli import main; main()", "--install-completion", shell]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    installed = [path for path in tmp_path.rglob("*") if path.is_file() and "_NEARCAST_COMPLETE" in path.read_text()]
    assert installed


def test_the_version_is_the_packages() -> None:
    said = subprocess.run(
        [sys.executable, "-c", "from nearcast.cli import main; main()", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert said.stdout == f"nearcast {project['version']}\n"


def _float_options(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for param in command.params:
        if "float" in str(param.type_descriptor.annotation):
            yield words, param
    for name, inner in getattr(command, "commands", {}).items():
        lazy = PLANS.get(name) if words == ("plan",) else None
        yield from _float_options(load(name, lazy) if lazy else inner, (*words, name))


FLOAT_OPTIONS = [
    pytest.param(words, param, id=" ".join((*words, param.opts[0])))
    for name, command in COMMANDS.items()
    for words, param in _float_options(load(name, command), (name,))
]


def test_there_are_numbers_to_refuse() -> None:
    assert {"workload follow --duration-s", "plan homes --cloud-delay-ms", "bench --rate"} <= {
        str(option.id) for option in FLOAT_OPTIONS
    }


@pytest.mark.parametrize(("words", "param"), FLOAT_OPTIONS)
@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_every_number_on_the_command_line_is_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], param: Any, number: str
) -> None:
    if number == "inf" and param.max == math.inf:
        return
    given = [param.opts[0], *(["1"] * (param.nargs - 1)), number]
    monkeypatch.setattr(sys, "argv", ["nearcast", *words, *given])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert param.opts[0] in said
