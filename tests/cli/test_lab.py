"""`nearcast lab wan`: what it reads and what it refuses. Areas that are really up: tests/system."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from nearcast import InputError
from nearcast.cli import main
from nearcast.cli.lab import FRACTIONS, MEGABITS, MILLISECONDS, quantity
from nearcast.cli.topology_file import read_topology
from nearcast.lab.wan import LinkSettings

if TYPE_CHECKING:
    from pathlib import Path


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cities.csv"
    path.write_text(text)
    return path


def test_round_trips_with_the_other_properties_of_a_way(tmp_path: Path) -> None:
    text = "source,destination,rtt_ms,jitter_ms,loss,mbit\n7,7,0.1,0,0,1\n7,8,20,2,0.01,100\n"
    topology = read_topology(file(tmp_path, text), 0.01)
    assert topology.link("8", "7") == LinkSettings(10.0, jitter_ms=2.0, loss=0.01, mbit=100.0)


def test_positions(tmp_path: Path) -> None:
    text = "node,latitude,longitude,access_ms\na,0,0,3\nb,0,1,4\n"
    assert read_topology(file(tmp_path, text), 0.1).link("a", "b").delay_ms == pytest.approx(18.12, abs=0.01)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("source,destination\na,b\n", ", row 0 (header): column 'rtt_ms' is missing"),
        ("source,destination,rtt_ms\na,b,-1\n", ", row 1: rtt_ms is -1"),
        ("source,destination,rtt_ms\na,b,1\na,b,2\n", ", row 2: source 'a', destination 'b' is there twice"),
        ("source,destination,rtt_ms,loss\na,b,1,0\nb,a,1,7\n", ", row 2: loss is 7; 0 to 1 is allowed"),
        ("source,destination,rtt_ms\na,b,1\nb,c,1\n", ": there is no row for the pair 'a', 'c'"),
        ("source,destination,rtt_ms\na,b/c,1\n", ": node 'b/c' cannot be a name"),
        ("node,latitude,longitude\na,91,0\nb,0,0\n", ", row 1: latitude is 91; at most 90 is needed"),
        ("node,latitude,longitude\na,1,0\na,0,0\n", ", row 2: node 'a' is there twice"),
        ("node,latitude,longitude\na,1,0\n", ": a topology has 2 to 1000 nodes; this one has 1"),
    ],
)
def test_refusals_name_the_file_and_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_topology(path, 0.01)
    assert str(caught.value).startswith(f"{path}{reason}")


def test_quantities_have_units() -> None:
    assert quantity("--delay", "40ms", MILLISECONDS) == 40.0
    assert quantity("--delay", "1.5 s", MILLISECONDS) == 1500.0
    assert quantity("--loss", "2%", FRACTIONS) == 0.02
    assert quantity("--bandwidth", "500kbit", MEGABITS) == 0.5
    assert quantity("--bandwidth", ".5", MEGABITS) == 0.5


@pytest.mark.parametrize("text", ["", "ms", "-4ms", "4 hours", "1e9s", "nan", "4ms5"])
def test_a_quantity_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--delay is .*ms, s, us"):
        quantity("--delay", text, MILLISECONDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "a", "b", "--cut"],
        ["show"],
        ["run", "--in", "a", "--", "true"],
        ["down"],
    ],
)
def test_commands_on_an_area_that_is_not_up_end_in_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("nearcast.lab.wan.lifecycle.FOLDER", tmp_path / "areas")
    monkeypatch.setattr(sys, "argv", ["nearcast", "lab", "wan", arguments[0], "--name", "none", *arguments[1:]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "nearcast: no area 'none' is up\n"
