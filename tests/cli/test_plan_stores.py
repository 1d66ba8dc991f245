"""`nearcast plan stores` as a user runs it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet
import pytest

from nearcast.cli import main

if TYPE_CHECKING:
    from pathlib import Path

# The worked example of the storage paper (its network and rates are ours, see the planner's tests).
EDGES = "a,b\n1,2\n2,3\n3,5\n5,6\n6,4\n"
RATES = {"a": [2, 3, 5, 2, 3, 2], "b": [0, 2, 14, 0, 11, 0], "c": [0, 1, 2, 0, 2, 1]}
DEMAND = "node,topic,rate\n" + "".join(
    f"{i + 1},{topic},{rate}\n" for topic, rates in RATES.items() for i, rate in enumerate(rates)
)
REPLICAS = "topic,replicas\na,2\nb,2\nc,2\n"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges.csv").write_text(EDGES)
    (tmp_path / "demand.csv").write_text(DEMAND)
    (tmp_path / "replicas.csv").write_text(REPLICAS)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, options: str) -> int:
    command = f"nearcast plan stores --edges edges.csv --demand demand.csv {options}"
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


EXAMPLE = "--stores 3 --capacity 2 --replicas replicas.csv"


@pytest.mark.usefixtures("files")
def test_the_worked_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for assign in ("sequential", "wrr"):
        assert run(monkeypatch, f"{EXAMPLE} --assign {assign}") == 0
        assert capsys.readouterr().out == "topic,store\na,2\na,3\nb,3\nb,5\nc,2\nc,5\n"


@pytest.mark.parametrize("assign", ["sequential", "wrr", "refined", "exact", "random", "greedy"])
def test_metrics_and_table(
    files: Path, assign: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, f"{EXAMPLE} --assign {assign} --json --out plan.csv --seed 3") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert {"stores", "traffic", "mean_hops", "seconds"} <= set(metrics)
    assert metrics["mean_hops"] == pytest.approx(metrics["traffic"] / 50)
    rows = [line.split(",") for line in (files / "plan.csv").read_text().splitlines()[1:]]
    assert sorted(topic for topic, _ in rows) == list("aabbcc")
    assert {store for _, store in rows} <= set(metrics["stores"])
    if assign in ("refined", "exact"):
        assert metrics["traffic"] == pytest.approx(18)


@pytest.mark.usefixtures("files")
def test_minimum_replicas_sizes_publishers_costs_and_parquet(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "edges.csv").write_text("a,b,cost\n1,2,1.5\n2,3,1\n3,5,2\n5,6,1\n6,4,1\n")
    (files / "sizes.csv").write_text("topic,size\nb,2\n")
    table = pa.table({"node": ["1", "4"], "rate": [3.0, 1.0]})
    pa.parquet.write_table(table, files / "publishers.parquet")
    options = "--stores 3 --capacity 3 --min-replicas 1 --sizes sizes.csv --publishers publishers.parquet"
    assert run(monkeypatch, f"{options} --json") == 0
    assert len(json.loads(capsys.readouterr().out)["stores"]) == 3


@pytest.mark.parametrize(
    ("name", "text", "options", "reason"),
    [
        ("edges.csv", "a,c\n1,2\n", EXAMPLE, "edges.csv, row 0 (header): column 'b' is missing"),
        ("edges.csv", "a,b\n1,1\n", EXAMPLE, "edges.csv, row 1: the link goes from '1' to itself"),
        (
            "edges.csv",
            "a,b\n1,2\n2,1\n",
            EXAMPLE,
            "edges.csv, row 2: link '2', '1' is there twice, first in row 1",
        ),
        ("edges.csv", "a,b\n1,2\n3,4\n", EXAMPLE, "edges.csv, row 2: '3' cannot be reached from '1'"),
        ("edges.csv", "a,b,cost\n1,2,-1\n", EXAMPLE, "edges.csv, row 1: cost is -1; at least 0 is needed"),
        ("edges.csv", "a,b,cost\n1,2,0\n", EXAMPLE, "edges.csv, row 1: cost is 0; more than 0 is needed"),
        (
            "demand.csv",
            "node,topic,rate\n9,a,1\n",
            EXAMPLE,
            "demand.csv, row 1: node '9' is not a node of edges.csv",
        ),
        ("demand.csv", "node,topic,rate\n1,a,nan\n", EXAMPLE, "demand.csv, row 1: rate is nan"),
        (
            "demand.csv",
            "node,topic,rate\n1,a,1\n1,a,2\n",
            EXAMPLE,
            "demand.csv, row 2: node '1', topic 'a' is there",
        ),
        ("demand.csv", "node,topic,rate\n", EXAMPLE, "demand.csv, row 1: the file has a header and no rows"),
        (
            "replicas.csv",
            "topic,replicas\na,1\nb,4\nc,1\n",
            EXAMPLE,
            "replicas.csv, row 2: 4 replicas are more than",
        ),
        ("replicas.csv", "topic,replicas\na,1\nb,0\n", EXAMPLE, "replicas.csv, row 2: replicas is 0"),
        (
            "replicas.csv",
            "topic,replicas\na,1\nb,1\n",
            EXAMPLE,
            "replicas.csv, row 0: topic 'c' of demand.csv is",
        ),
        (
            "replicas.csv",
            REPLICAS,
            "--stores 7 --capacity 2",
            "edges.csv, row 0: --stores is 7; with these links",
        ),
        ("replicas.csv", REPLICAS, "--stores 3 --capacity nan", "--capacity is nan; a finite number is needed"),
        (
            "replicas.csv",
            REPLICAS,
            "--stores 2 --capacity 1 --min-replicas 2",
            "demand.csv, row 0: capacity too small: 2 replicas of each topic need 6, 2 stores of 1 have 2",
        ),
        (
            "replicas.csv",
            REPLICAS,
            "--stores 2 --capacity 2 --replicas replicas.csv",
            "demand.csv, row 0: capacity too small: the replicas need 6, 2 stores of 2 have 4",
        ),
        ("replicas.csv", REPLICAS, f"{EXAMPLE} --min-replicas 2", "--min-replicas and --replicas exclude"),
        (
            "sizes.csv",
            "topic,size\na,3\n",
            f"{EXAMPLE} --sizes sizes.csv",
            "sizes.csv, row 1: size 3 is more than",
        ),
    ],
)
def test_refusals(
    files: Path,
    name: str,
    text: str,
    options: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (files / name).write_text(text)
    assert run(monkeypatch, f"{options} --out plan.csv --json") == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"nearcast: {reason}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not (files / "plan.csv").exists()


@pytest.mark.usefixtures("files")
def test_reassignment_failures_and_a_number_of_stores_that_is_chosen(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--capacity 2 --assign wrr --json --out plan.csv") == 0
    chosen = json.loads(capsys.readouterr().out)
    assert 2 <= len(chosen["stores"]) <= 6
    (files / "demand.csv").write_text("node,topic,rate\n4,a,9\n6,b,1\n1,c,5\n")
    assert run(monkeypatch, "--capacity 2 --assign refined --failure 0.2 --down 1 --current plan.csv --json") == 0
    again = json.loads(capsys.readouterr().out)
    assert set(again["stores"]) == set(chosen["stores"])
    assert again["unserved_down"] >= 0
    (files / "demand.csv").write_text("node,topic,rate\n4,a,1e300\n")
    assert run(monkeypatch, "--stores 3 --capacity 2") == 2
    assert "rate is 1e300; at most" in capsys.readouterr().err


def test_when_stores_are_lost_the_others_take_over(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, f"{EXAMPLE} --out plan.csv") == 0
    options = "--capacity 3 --assign refined --min-replicas 2 --current plan.csv --lost 3 --moves moves.csv"
    assert run(monkeypatch, f"{options} --out again.csv --json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert sorted(metrics["stores"]) == ["2", "5"]
    assert metrics["mean_hops"] < metrics["mean_hops_before"]
    assert metrics["unserved_before"] == 0
    before, after = ((files / name).read_text().splitlines()[1:] for name in ("plan.csv", "again.csv"))
    assert after == ["a,2", "a,5", "b,2", "b,5", "c,2", "c,5"]
    assert (files / "moves.csv").read_text() == "topic,store,change\nb,2,add\na,5,add\n"
    assert metrics["moves"] == len(set(after) - set(before)) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--lost 2", "--lost needs --current: what the stores hold today"),
        ("--moves moves.csv", "--moves needs --current: what the stores hold today"),
        ("--current plan.csv --lost 1", "--lost is 1; plan.csv has no such store"),
        ("--current plan.csv --lost 2 --lost 3 --lost 5", "--lost names all 3 stores of plan.csv; one must be left"),
        (
            "--current plan.csv --lost 2 --lost 3",
            "demand.csv, row 0: capacity too small: 1 replicas of each topic need 3",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_refusals_of_lost_stores(
    options: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, f"{EXAMPLE} --out plan.csv") == 0
    assert run(monkeypatch, f"--capacity 2 {options}") == 2
    assert capsys.readouterr().err.startswith(f"nearcast: {reason}")
