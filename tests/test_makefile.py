"""Set-up installs a missing Java where it may, and names it elsewhere; it fails in neither case."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make_java(folder: Path, user: int, *programs: str, **environment: str) -> str:
    """What `make java` says where there are only these programs; `apt-get` succeeds unless it is `broken`."""
    for name in programs:
        body = 'echo "apt-get $*"\n' + ("exit 1\n" if environment.get("broken") else "") if name == "apt-get" else ""
        (folder / name).write_text(f"#!/bin/sh\n{body}")
    (folder / "id").write_text(f"#!/bin/sh\necho {user}\n")
    for file in folder.iterdir():
        file.chmod(0o755)
    make = shutil.which("make")
    assert make is not None
    done = subprocess.run(
        [make, "--no-print-directory", "-C", str(ROOT), "java"], capture_output=True, text=True, check=False,
        env={"PATH": str(folder)} | environment, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_root_on_debian_gets_it(tmp_path: Path) -> None:
    said = make_java(tmp_path, 0, "apt-get").splitlines()
    assert said[0] == "Set-up: Java for the data cluster, by apt-get install openjdk-17-jre-headless."
    assert said[1:] == [
        "apt-get -qq update",
        "apt-get -qq --yes --no-install-recommends install openjdk-17-jre-headless",
    ]


def test_elsewhere_it_is_named(tmp_path: Path) -> None:
    named = "There is no Java; the data cluster needs it, all the rest runs without. Debian: sudo apt-get install "
    assert make_java(tmp_path, 1000, "apt-get") == f"{named}openjdk-17-jre-headless\n"
    (tmp_path / "apt-get").unlink()
    assert make_java(tmp_path, 0) == f"{named}openjdk-17-jre-headless\n"


def test_what_cannot_be_installed_does_not_stop_the_rest(tmp_path: Path) -> None:
    said = make_java(tmp_path, 0, "apt-get", broken="yes")
    assert said.endswith("Java was not installed; the data cluster needs it, all the rest runs without.\n")


@pytest.mark.parametrize("environment", [{}, {"JAVA_HOME": "/opt/java"}])
def test_a_java_that_is_there_is_left_alone(environment: dict[str, str], tmp_path: Path) -> None:
    programs = ["apt-get"] if environment else ["apt-get", "java"]
    assert make_java(tmp_path, 0, *programs, **environment) == ""
