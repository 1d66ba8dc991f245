"""`nearcast plan partition`: tables in, a plan and its metrics out, mistakes refused in one line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pyarrow.csv
import pyarrow.parquet
import pytest

from nearcast.cli.app import main

if TYPE_CHECKING:
    from pathlib import Path

COORDINATE = "c0,c1,c2,c3,c4,c5,c6,c7,height"
ZEROS = ",0,0,0,0,0,0,0"
# Sites at 0 and 100 on a line; topic far is at 100 and hosted at 0, topic near is where it belongs.
FILES = {
    "topics": "topic,bound_ms,rate_out\nfar,50,5\nnear,50,7\n",
    "clients": f"topic,client,role,{COORDINATE}\nfar,007,pub,99{ZEROS},1\nfar,b,sub,98{ZEROS},2\n"
    f"near,007,both,1{ZEROS},1\n",
    "sites": f"site,{COORDINATE},rate_limit\nwest,0{ZEROS},1,20\neast,100{ZEROS},1,20\n",
    "current": "topic,site\nfar,west\nnear,west\n",
}


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: object, **changed: str) -> int:
    arguments: list[object] = ["nearcast", "plan", "partition"]
    for name, text in (FILES | changed).items():
        (folder / f"{name}.csv").write_text(text)
        arguments += [f"--{name}", folder / f"{name}.csv"]
    monkeypatch.setattr(sys, "argv", [str(word) for word in (*arguments, *words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("method", ["centroid", "allpairs", "refined", "exact"])
def test_the_late_topic_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    out = tmp_path / "plan.csv"
    assert run(monkeypatch, tmp_path, "--method", method, "--out", out, "--json") == 0
    assert out.read_text() == "topic,site\nfar,east\nnear,west\n"
    metrics = json.loads(capsys.readouterr().out)
    assert metrics.pop("seconds") >= 0
    assert metrics == {
        "method": method,
        "violations_before": 1,
        "violations_after": 0,
        "pairs": 2,
        "late_pairs_before": 1,
        "late_pairs_after": 0,
        "pair_violation_ratio": 0.0,
        "worst_latency_ms": pytest.approx((1 + 1 + 1) + (2 + 2 + 1)),
        "moves": 1,
        "overloaded_sites": [],
    }


def test_tables_may_still_call_a_site_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "brokers.csv"
    old.write_text(FILES["sites"].replace("site,", "broker,"))
    current = FILES["current"].replace("topic,site", "topic,broker")
    assert run(monkeypatch, tmp_path, "--brokers", old, sites="no table", current=current) == 0
    assert capsys.readouterr().out == "topic,site\nfar,east\nnear,west\n"


def test_there_is_no_seed_because_nothing_is_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--seed", 1) == 2
    assert "No such option" in capsys.readouterr().err


def test_hash_ignores_where_clients_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--method", "hash") == 0
    plan = capsys.readouterr().out
    moved = FILES["clients"].replace("far,007,pub,99", "far,007,pub,0").replace("far,b,sub,98", "far,b,sub,0")
    assert run(monkeypatch, tmp_path, "--method", "hash", clients=moved) == 0
    assert capsys.readouterr().out == plan
    assert plan.startswith("topic,site\nfar,")


def test_parquet_and_topics_without_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words: list[str] = ["nearcast", "plan", "partition"]
    for name in ("topics", "clients", "sites"):
        (tmp_path / f"{name}.csv").write_text(FILES[name])
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(tmp_path / f"{name}.csv"), path)
        words += [f"--{name}", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert capsys.readouterr().out == "topic,site\nfar,east\nnear,west\n"


def test_an_overload_that_cannot_be_helped_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both topics fit the sites together but not as they are cut: 8 and 7 into 10 and 6."""
    topics = "topic,bound_ms,rate_out\nfar,500,8\nnear,500,7\n"
    sites = FILES["sites"].replace("1,20\neast", "1,10\neast").replace(",20\n", ",6\n")
    assert run(monkeypatch, tmp_path, "--json", topics=topics, sites=sites) == 0
    assert json.loads(capsys.readouterr().out)["overloaded_sites"] == ["west"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("topics", "topic,bound_ms\nfar,1\n", "row 0 (header): column 'rate_out' is missing"),
        ("clients", FILES["clients"].replace("c3,", "x,"), "row 0 (header): column 'c3' is missing"),
        ("topics", FILES["topics"] + "far,1,1\n", "row 3: topic 'far' is there twice, first in row 1"),
        ("topics", "topic,bound_ms,rate_out\nfar,-1,1\n", "row 1: bound_ms is -1; at least 0 is needed"),
        ("sites", FILES["sites"].replace("100", "inf"), "row 2: c0 is inf; a finite number is needed"),
        ("sites", f"site,{COORDINATE},rate_limit\n", "row 1: the file has a header and no rows"),
        ("clients", FILES["clients"] + f"no,c,pub,0{ZEROS},0\n", "row 4: topic 'no' is not a topic of"),
        (
            "clients",
            FILES["clients"].replace("both", "boss"),
            "row 3: role is 'boss'; allowed: pub, sub, both",
        ),
        (
            "clients",
            FILES["clients"] + f"near,007,sub,0{ZEROS},0\n",
            "row 4: client '007' subscribes to topic 'near' twice",
        ),
        ("current", "topic,site\nfar,north\n", "row 1: site 'north' is not a site of"),
        ("current", "topic,site\nfar,west\nfar,east\n", "row 2: topic 'far' is there twice"),
        (
            "topics",
            "topic,bound_ms,rate_out\nfar,9,1\nnear,9,21\n",
            "row 2: rate_out is 21; the largest rate_limit",
        ),
        (
            "topics",
            "topic,bound_ms,rate_out\nfar,9,15\nnear,9,15\nmid,9,15\n",
            "row 3: rate_out adds up to 45; all rate_limit of",
        ),
    ],
)
def test_refusals_name_file_row_and_reason_and_write_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    reason: str,
) -> None:
    out = tmp_path / "plan.csv"
    assert run(monkeypatch, tmp_path, "--out", out, **{name: text}) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"nearcast: {tmp_path / name}.csv, {reason}")
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_new_topic_without_room_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    topics = "topic,bound_ms,rate_out\nfar,500,6\nnear,500,6\nnew,500,6\n"
    sites = FILES["sites"].replace(",20\n", ",9\n")
    assert run(monkeypatch, tmp_path, topics=topics, sites=sites) == 2
    assert "topics.csv, row 3: no site has room for rate_out 6" in capsys.readouterr().err


@pytest.mark.parametrize("axes", ["c0", "c0,c1,c2"])
@pytest.mark.parametrize("method", ["centroid", "allpairs", "refined", "exact", "hash"])
def test_coordinates_have_any_number_of_dimensions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], axes: str, method: str
) -> None:
    rest = ",0" * axes.count(",")
    changed = {
        "topics": "topic,bound_ms,rate_out\nfür,50,1e300\nnear,50,1e300\n",
        "clients": f"topic,client,role,{axes},height\nfür,a,pub,99{rest},1\nfür,b,sub,98{rest},2\n"
        f"near,a,both,1{rest},1\n",
        "sites": f"site,{axes},height,rate_limit\nwest,0{rest},1,2e300\neast,100{rest},1,2e300\n",
        "current": "topic,site\nfür,west\nnear,west\n",
    }
    assert run(monkeypatch, tmp_path, "--method", method, "--objective", "pairs", "--json", **changed) == 0
    metrics = json.loads(capsys.readouterr().out)
    if method != "hash":
        assert (metrics["late_pairs_after"], metrics["moves"]) == (0, 1)


def test_a_cap_on_moves_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, "--method", "refined", "--moves-at-most", 0, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert (metrics["violations_after"], metrics["moves"]) == (1, 0)


def test_a_missing_axis_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = "site,c0,c2,height,rate_limit\nwest,0,0,1,20\n"
    assert run(monkeypatch, tmp_path, sites=sites) == 2
    assert "column 'c1' is missing" in capsys.readouterr().err
