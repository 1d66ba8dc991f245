"""`nearcast coordinates fit`: a table of round trips in, coordinates and their error out."""

from __future__ import annotations

import csv
import json
import math
import sys
from typing import TYPE_CHECKING

import pytest

from nearcast.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

PLACES = {"a": (0, 0), "b": (30, 0), "c": (0, 40), "d": (30, 40)}


def table(folder: Path) -> Path:
    path = folder / "rtt.csv"
    pairs = [(s, d, math.dist(PLACES[s], PLACES[d]) + 4) for s in PLACES for d in PLACES if s < d]
    path.write_text("source,destination,rtt_ms\na,a,0\n" + "".join(f"{s},{d},{r}\n" for s, d, r in pairs))
    return path


def nearcast(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["nearcast", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_coordinates_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "coordinates.csv"
    assert nearcast(monkeypatch, "coordinates", "fit", "--rtt", table(tmp_path), "--out", out, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert set(metrics) == {"median_relative_error", "p90_relative_error", "rounds", "nodes", "seconds"}
    assert metrics["median_relative_error"] < 0.1
    rows = {row["node"]: row for row in csv.DictReader(out.read_text().splitlines())}
    assert list(rows) == list(PLACES)

    def estimate(s: str, d: str) -> float:
        position = [[float(rows[n][f"c{i}"]) for i in range(8)] for n in (s, d)]
        return math.dist(*position) + float(rows[s]["height"]) + float(rows[d]["height"])

    assert estimate("a", "d") == pytest.approx(54, rel=0.1)


def test_without_json_the_table_is_printed_and_a_seed_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for seed in (1, 1, 2):
        assert nearcast(monkeypatch, "coordinates", "fit", "--rtt", table(tmp_path), "--seed", seed) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0].startswith("node,c0,c1,c2,c3,c4,c5,c6,c7,height\na,")
    assert printed[0] == printed[1] != printed[2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("source,destination\na,b\n", "row 0 (header): column 'rtt_ms' is missing"),
        ("source,destination,rtt_ms\n", "row 1: the file has a header and no rows"),
        ("source,destination,rtt_ms\na,b,1\na,b,2\n", "row 2: source 'a', destination 'b' is there twice"),
        ("source,destination,rtt_ms\na,b,-1\n", "row 1: rtt_ms is -1; at least 0 is needed"),
        ("source,destination,rtt_ms\na,b,nan\n", "row 1: rtt_ms is nan; a finite number is needed"),
        ("source,destination,rtt_ms\na,a,1\nb,a,0\n", "row 2: rtt_ms is 0; at least 1e-09 is needed between different"),
        (
            "source,destination,rtt_ms\na,b,1e-300\n",
            "row 1: rtt_ms is 1e-300; at least 1e-09 is needed between different",
        ),
        ("source,destination,rtt_ms\na,b,1e308\n", "row 1: rtt_ms is 1e308; at most 1e+15 is needed"),
        ("source,destination,rtt_ms\na,a,1\n", "row 1: a node with itself, as all rows"),
        ("source,destination,rtt_ms\na,b,1\nc,d,1\n", "row 2: no chain of measurements joins 'c' and 'a'"),
    ],
)
def test_refusals_are_one_line_and_write_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    reason: str,
) -> None:
    path, out = tmp_path / "rtt.csv", tmp_path / "out.csv"
    path.write_text(text)
    assert nearcast(monkeypatch, "coordinates", "fit", "--rtt", path, "--out", out) == 2
    assert capsys.readouterr().err.startswith(f"nearcast: {path}, {reason}")
    assert not out.exists()
