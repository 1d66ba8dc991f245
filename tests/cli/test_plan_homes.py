"""`nearcast plan homes` from files to a plan, and every refusal in one line."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from scipy.spatial.distance import cdist

from nearcast.cli.app import main
from nearcast.placement.homes import HomesProblem, evaluate, membership

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "sites": "site,x_km,y_km,storage,compute\neast,8,0,20,60\nwest,-8,0,20,60\nmid,0,0,10,30\n",
    "clients": "client,x_km,y_km\na,7,1\nb,9,0\nc,-7,0\nd,-9,1\ne,0,1\nf,1,0\nlonely,-8,0\n",
    "topics": "topic,spool_size\nt1,10\nt2,8\n",
    "members": "topic,client,role\nt1,a,both\nt1,b,both\nt1,e,pub\nt2,c,both\nt2,d,sub\nt2,f,both\n",
}


class Run:
    """The command with the four files above, some of them changed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys

    def __call__(self, *options: str, suffix: str = "csv", **changed: str) -> tuple[int, str, str]:
        arguments = ["nearcast", "plan", "homes"]
        for name, text in {**FILES, **changed}.items():
            path = self.folder / f"{name}.csv"
            path.write_text(text)
            if suffix == "parquet":
                pa.parquet.write_table(pa.csv.read_csv(path), path.with_suffix(".parquet"))
            arguments += [f"--{name}", str(path.with_suffix(f".{suffix}"))]
        self.monkeypatch.setattr(sys, "argv", [*arguments, *options])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = self.capsys.readouterr()
        code = stop.value.code
        assert isinstance(code, int)
        return code, out, err


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(tmp_path, monkeypatch, capsys)


def homes_in(text: str) -> dict[str, str]:
    rows = list(csv.reader(text.splitlines()))
    assert rows[0] == ["client", "site"]
    return dict(rows[1:])


@pytest.mark.parametrize("method", ["random", "nearest", "one_topic_one_site", "reloc", "refined", "exact"])
def test_every_client_gets_one_home_and_the_metrics_are_those_of_the_plan(run: Run, method: str) -> None:
    out = run.folder / "plan.csv"
    code, printed, _ = run("--method", method, "--json", "--out", str(out))
    assert code == 0
    homes, metrics = homes_in(out.read_text()), json.loads(printed)
    assert list(homes) == ["a", "b", "c", "d", "e", "f", "lonely"]

    sites = np.array([[8.0, 0], [-8, 0], [0, 0]])
    clients = np.array([[7.0, 1], [9, 0], [-7, 0], [-9, 1], [0, 1], [1, 0], [-8, 0]])
    problem = HomesProblem(
        0.1 * cdist(clients, sites),
        0.1 * cdist(sites, sites),
        5.0,
        np.array([20.0, 20, 10]),
        np.array([60.0, 60, 30]),
        np.array([10.0, 8]),
        membership([0, 0, 0, 1, 1], [0, 1, 4, 2, 5], (2, 7)),
        membership([0, 0, 1, 1, 1], [0, 1, 2, 3, 5], (2, 7)),
    )
    plan = evaluate(problem, np.array([["east", "west", "mid"].index(site) for site in homes.values()]))
    assert metrics["method"] == method
    assert metrics["delay_ms"] == pytest.approx(plan.delay_ms)
    assert metrics["distance_delay_ms"] == pytest.approx(plan.distance_delay_ms)
    assert metrics["resource_delay_ms"] == pytest.approx(plan.resource_delay_ms)
    assert list(metrics["storage_used"].values()) == pytest.approx(plan.storage_used)
    assert list(metrics["compute_used"].values()) == pytest.approx(plan.compute_used)
    assert list(metrics["storage_used"]) == ["east", "west", "mid"]
    assert metrics["delegated_share"] == pytest.approx(plan.delegated_share)
    assert metrics["seconds"] >= 0


def test_without_json_the_plan_is_printed(run: Run) -> None:
    code, printed, error = run("--method", "nearest")
    assert (code, error) == (0, "")
    assert homes_in(printed) == {
        "a": "east", "b": "east", "c": "west", "d": "west", "e": "mid", "f": "mid", "lonely": "west"
    }  # fmt: skip


def test_json_alone_prints_one_object(run: Run) -> None:
    code, printed, _ = run("--method", "nearest", "--json")
    assert code == 0
    assert json.loads(printed)["method"] == "nearest"


def test_the_seed_decides(run: Run) -> None:
    first, again, other = (run("--method", "random", "--seed", seed)[1] for seed in ("1", "1", "2"))
    assert first == again != other


def test_parquet_in_and_the_globe(run: Run) -> None:
    sites = "site,lat,lon,storage,compute\nparis,48.85,2.35,20,60\nrome,41.9,12.5,20,60\n"
    clients = "client,lat,lon\na,48,2\nb,49,3\nc,42,12\nd,41,13\ne,43,11\nf,42,12.1\n"
    code, printed, _ = run("--method", "nearest", suffix="parquet", sites=sites, clients=clients)
    assert code == 0
    assert list(homes_in(printed).values()) == ["paris", "paris", "rome", "rome", "rome", "rome"]


@pytest.mark.parametrize(
    ("changed", "options", "reason"),
    [
        (
            {"sites": "site,x_km,y_km,storage\na,0,0,1\n"},
            [],
            "sites.csv, row 0 (header): column 'compute' is missing",
        ),
        (
            {"sites": "site,x_km,storage,compute\na,0,1,1\n"},
            [],
            "sites.csv, row 0 (header): columns x_km and y_km",
        ),
        (
            {"sites": "site,x_km,y_km,storage,compute\n"},
            [],
            "sites.csv, row 1: the file has a header and no rows",
        ),
        ({"sites": "site,x_km,y_km,storage,compute\na,0,0,-1,1\n"}, [], "sites.csv, row 1: storage is -1"),
        ({"sites": "site,x_km,y_km,storage,compute\na,0,inf,1,1\n"}, [], "sites.csv, row 1: y_km is inf"),
        (
            {"clients": "client,x_km,y_km\na,0,0\na,1,1\n"},
            [],
            "clients.csv, row 2: client 'a' is there twice",
        ),
        (
            {"clients": "client,lat,lon\na,0,0\n"},
            [],
            "clients.csv, row 0 (header): positions are of another kind",
        ),
        ({"clients": "client,lat,lon\na,0,200\n"}, [], "clients.csv, row 1: lon is 200; at most 180"),
        ({"topics": "topic,spool_size\nt1,nan\n"}, [], "topics.csv, row 1: spool_size is nan"),
        (
            {"members": "topic,client,role\nt1,zoe,pub\n"},
            [],
            "members.csv, row 1: client 'zoe' is not a client of",
        ),
        (
            {"members": "topic,client,role\nt9,a,pub\n"},
            [],
            "members.csv, row 1: topic 't9' is not a topic of",
        ),
        (
            {"members": "topic,client,role\nt1,a,boss\n"},
            [],
            "members.csv, row 1: role is 'boss'; allowed: pub",
        ),
        (
            {"members": "topic,client,role\nt1,a,pub\nt1,a,sub\n"},
            [],
            "members.csv, row 2: topic 't1', client 'a' is",
        ),
        ({}, ["--clusters", "4"], "--clusters is '4'; allowed: auto, or 1 to 3"),
        ({}, ["--clusters", "many"], "--clusters is 'many'; allowed: auto, or 1 to 3"),
        ({}, ["--cloud-delay-ms", "nan"], "--cloud-delay-ms is nan"),
        ({}, ["--ms-per-km", "-1"], "--ms-per-km is -1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    run: Run, changed: dict[str, str], options: list[str], reason: str
) -> None:
    out = run.folder / "plan.csv"
    code, printed, error = run(*options, "--out", str(out), **changed)
    assert (code, printed) == (2, "")
    assert reason in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_more_than_the_exact_solver_can_do_is_refused(run: Run) -> None:
    clients = "client,x_km,y_km\n" + "".join(f"c{i},0,0\n" for i in range(40))
    members = "topic,client,role\n" + "".join(f"t1,c{i},both\n" for i in range(40))
    code, _, error = run("--method", "exact", clients=clients, members=members)
    assert code == 2
    assert "40 clients × 3 sites are too many for the exact solver" in error
