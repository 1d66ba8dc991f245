"""`nearcast workload`: good input, refused input, and tables that the planners' reader accepts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from nearcast.cli.app import main
from nearcast.cli.tables import Column, Ids, read_table

COORDINATES = [Column(f"c{axis}", minimum=None) for axis in range(8)] + [Column("height")]
# Small ones, without Spark: the taxi job has its own tests.
COMMANDS = {
    "follow": ["follow", "--clients", "40", "--topics", "8"],
    "uav": ["uav", "--swarms", "2", "--drones", "3", "--duration-s", "60"],
    "game": ["game", "--avatars", "12", "--groups", "3", "--cities", "3", "--duration-s", "60"],
    "content": ["content", "--nodes", "20", "--topics", "3", "--duration-s", "5"],
    "emergency": ["emergency", "--users", "20", "--reports", "100", "--login-s", "10", "--duration-s", "60"],
}


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nearcast", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


@pytest.fixture(params=COMMANDS)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / request.param
    assert run(monkeypatch, "workload", *COMMANDS[request.param], "--out", str(folder)) == 0
    return folder


def test_a_script_gets_json(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(monkeypatch, "workload", "show", str(made), "--picture", str(made / "x.png"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["workload"], told["picture"]) == (made.name, str(made / "x.png"))
    assert told["delivered"] >= 0 < told["published"]
    assert {f"{name}.csv" for name in told["rows"]} <= {file.name for file in made.iterdir()}
    assert sum(told["events"].values()) > 0
    again = made.with_name("again")
    assert run(monkeypatch, "workload", *COMMANDS[made.name], "--out", str(again), "--json") == 0
    written = json.loads(capsys.readouterr().out)
    assert written.pop("written") == str(again)
    assert {key: written[key] for key in written} == {key: told[key] for key in written}


def test_tables_have_the_columns_the_planners_read(made: Path) -> None:
    def table(name: str, *columns: Column, key: tuple[str, ...]) -> object:
        return read_table(made / f"{name}.csv", columns, key=key)

    def ids(name: str, column: str, *others: Column) -> Ids:
        read = read_table(made / f"{name}.csv", [Column(column, "text"), *others], key=[column])
        return Ids(column, read.path, read[column])

    text = {name: Column(name, "text") for name in ("topic", "client", "site", "subscriber", "subscription")}
    role = Column("role", "text", choices=("pub", "sub", "both"))
    if made.name == "follow":
        ids("sites", "site", Column("x_km"), Column("y_km"), Column("storage"), Column("compute"))
        clients = ids("clients", "client", Column("x_km"), Column("y_km"))
        topics = ids("topics", "topic", Column("spool_size", "integer"))
        members = read_table(made / "members.csv", [text["topic"], text["client"], role], key=["topic", "client"])
        topics.positions(members, "topic")
        clients.positions(members, "client")
    elif made.name in ("uav", "game"):
        topics = ids("topics", "topic", Column("bound_ms"), Column("rate_out"))
        sites = ids("sites", "site", *COORDINATES, Column("rate_limit"))
        clients_read = read_table(
            made / "clients.csv",
            [text["topic"], text["client"], role, *COORDINATES],
            key=["topic", "client", "role"],
        )
        topics.positions(clients_read, "topic")
        current = read_table(made / "current.csv", [text["topic"], text["site"]], key=["topic"])
        topics.positions(current, "topic")
        sites.positions(current, "site")
        assert current.rows == len(topics.names)
    elif made.name == "content":
        table("edges", Column("a", "text"), Column("b", "text"), Column("cost"), key=("a", "b"))
        table("demand", Column("node", "text"), text["topic"], Column("rate"), key=("node", "topic"))
    else:
        sites = ids("sites", "site", Column("x_km"), Column("y_km"))
        shared = ids("rates", "subscription", Column("rate"))
        subscribed = read_table(
            made / "subscriptions.csv",
            [text["subscriber"], text["subscription"]],
            key=["subscriber", "subscription"],
        )
        shared.positions(subscribed, "subscription")
        current = read_table(made / "current.csv", [text["subscriber"], text["site"]], key=["subscriber"])
        sites.positions(current, "site")
        Ids("subscriber", current.path, current["subscriber"]).positions(subscribed, "subscriber")


def test_the_planner_accepts_the_tables(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, *options = json.loads((made / "workload.json").read_text())["plan"].split()
    monkeypatch.chdir(made)
    if made.name == "content":  # twenty nodes only
        options[options.index("--stores") + 1] = "5"
    assert run(monkeypatch, "plan", planner, *options, "--json", "--out", "plan.csv") == 0
    assert len((made / "plan.csv").read_text().splitlines()) > 1


def test_a_workload_says_what_it_is_and_draws_itself(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.loads((made / "workload.json").read_text())
    assert about["workload"] == made.name
    capsys.readouterr()
    assert run(monkeypatch, "workload", "show", str(made)) == 0
    told = capsys.readouterr().out
    assert f"workload   {made.name}" in told
    assert f"nearcast plan {about['plan']}" in told
    assert (made / "workload.png").read_bytes().startswith(b"\x89PNG")


def test_show_takes_a_file_of_the_folder_and_a_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "workload", "show", "content") == 0
    assert Path("content.png").read_bytes().startswith(b"\x89PNG")
    assert run(monkeypatch, "workload", *COMMANDS["content"], "--out", "made") == 0
    assert run(monkeypatch, "workload", "show", "made/events.parquet", "--picture", "other.png") == 0
    assert Path("other.png").exists()
    assert "picture    other.png" in capsys.readouterr().out


def test_the_same_seed_writes_the_same_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        out = str(tmp_path / folder)
        assert run(monkeypatch, "workload", *COMMANDS["follow"], "--seed", seed, "--out", out) == 0
    a, b, c = ((tmp_path / folder / "clients.csv").read_text() for folder in "abc")
    assert a == b != c


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["follow", "--clients", "5", "--out", "o"], "5 clients do not fit 64 topics"),
        (["follow", "--graph", "nowhere.txt", "--out", "o"], "nowhere.txt, row 0: there is no such file"),
        (
            ["uav", "--towers", "bad.csv", "--out", "o"],
            "bad.csv, row 0 (header): column 'latitude' is missing",
        ),
        (["game", "--servers", "bad.csv", "--out", "o"], "--servers and --pings belong together"),
        (["emergency", "--duration-s", "5", "--out", "o"], "duration_s is 5"),
        (["content", "--out", "bad.csv"], "bad.csv is a file; --out names a folder"),
        (["show", "nothing"], "neither a folder of a workload nor a name"),
        (["show", "."], "workload.json is missing"),
        (["show", "content", "--picture", "no/where.png"], "no place for the picture"),
        (["show", "content", "--picture", "picture.jpg"], "no place for the picture"),
    ],
)
def test_mistakes_are_refused_in_one_line_and_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.csv").write_text("a,b\n1,2\n")
    assert run(monkeypatch, "workload", *words) == 2
    told = capsys.readouterr().err.strip()
    assert reason in told
    assert "\n" not in told
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]
