"""`nearcast plan balance` as a user runs it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast.cli import main
from nearcast.placement.balance import from_pairs, loads

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ["ldm", "sdm", "gsh", "staged", "refined", "grouped"]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    pairs = np.unique(rng.integers((0, 0), (200, 30), size=(1500, 2)), axis=0)
    rates = rng.integers(1, 9, size=30)
    (tmp_path / "sites.csv").write_text("site,x_km,y_km\neast,1,-2\nwest,-4,0\nnorth,0,3\n")
    (tmp_path / "subscriptions.csv").write_text("subscriber,subscription\n" + "".join(f"u{i},s{k}\n" for i, k in pairs))
    (tmp_path / "rates.csv").write_text("subscription,rate\n" + "".join(f"s{k},{r}\n" for k, r in enumerate(rates)))
    (tmp_path / "current.csv").write_text(
        "subscriber,site\n" + "".join(f"u{i},{'east' if i < 150 else 'north'}\n" for i in range(200))
    )
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, options: str, sites: str = "--sites sites.csv") -> int:
    tables = f"{sites} --subscriptions subscriptions.csv --rates rates.csv --current current.csv"
    monkeypatch.setattr(sys, "argv", f"nearcast plan balance {tables} {options}".split())
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def read(path: Path) -> dict[str, str]:
    return dict(line.split(",")[:2] for line in path.read_text().splitlines()[1:])


@pytest.mark.parametrize("method", METHODS)
def test_metrics_agree_with_the_table(
    files: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, f"--method {method} --json --out plan.csv") == 0
    metrics = json.loads(capsys.readouterr().out)
    before, after = read(files / "current.csv"), read(files / "plan.csv")
    assert set(after) == set(before)
    assert metrics["moves"] == sum(before[s] != after[s] for s in before)

    sites, rates = ["east", "west", "north"], read(files / "rates.csv")
    pairs = [line.split(",") for line in (files / "subscriptions.csv").read_text().splitlines()[1:]]
    problem = from_pairs(
        np.array([list(before).index(s) for s, _ in pairs]),
        np.array([list(rates).index(k) for _, k in pairs]),
        np.array([float(rate) for rate in rates.values()]),
        subscribers=200,
        sites=3,
    )
    for which, table in {"before": before, "after": after}.items():
        load = loads(problem, np.array([sites.index(b) for b in table.values()]))
        assert metrics[f"max_load_{which}"] == pytest.approx(load.max())
        assert metrics[f"cov_{which}"] == pytest.approx(load.std() / load.mean())
    assert metrics["lower_bound"] <= metrics["max_load_after"] < metrics["max_load_before"]


@pytest.mark.usefixtures("files")
def test_the_table_goes_to_standard_output(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--method gsh") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "subscriber,site"
    assert len(lines) == 201


def test_tables_may_still_call_a_site_broker(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--method sdm") == 0
    expected = capsys.readouterr().out
    (files / "current.csv").write_text(
        (files / "current.csv").read_text().replace("subscriber,site", "subscriber,broker")
    )
    (files / "brokers.csv").write_text((files / "sites.csv").read_text().replace("site,", "broker,"))
    (files / "sites.csv").unlink()
    assert run(monkeypatch, "--method sdm", sites="--brokers brokers.csv") == 0
    assert capsys.readouterr().out == expected


@pytest.mark.usefixtures("files")
def test_thresholds_decide_whether_anything_moves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--method staged --beta 1e9 --theta 1e9 --json") == 0
    assert json.loads(capsys.readouterr().out)["moves"] == 0


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("sites.csv", "site\na\na\n", "sites.csv, row 2: site 'a' is there twice, first in row 1"),
        ("sites.csv", "name\na\n", "sites.csv, row 0 (header): column 'site' is missing"),
        (
            "current.csv",
            "subscriber,site\nu1,south\n",
            "current.csv, row 1: site 'south' is not a site of",
        ),
        (
            "current.csv",
            "subscriber,site\nu0,east\n",
            "subscriptions.csv, row 10: subscriber 'u1' is not a",
        ),
        ("rates.csv", "subscription,rate\ns1,-3\n", "rates.csv, row 1: rate is -3; at least 0 is needed"),
        (
            "rates.csv",
            "subscription,rate\ns1,inf\n",
            "rates.csv, row 1: rate is inf; a finite number is needed",
        ),
        ("rates.csv", "subscription,rate\ns99,1\n", "subscriptions.csv, row 1: subscription 's"),
        (
            "subscriptions.csv",
            "subscriber,subscription\n",
            "subscriptions.csv, row 1: the file has a header and no",
        ),
        (
            "subscriptions.csv",
            "subscriber,subscription\nu1,s1\nu1,s1\n",
            "subscriptions.csv, row 2: subscriber 'u1', subscription 's1' is there twice, first in row 1",
        ),
    ],
)
def test_refusals(
    files: Path,
    name: str,
    text: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (files / name).write_text(text)
    assert run(monkeypatch, "--method gsh --out plan.csv --json") == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"nearcast: {reason}")
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert not (files / "plan.csv").exists()


@pytest.mark.usefixtures("files")
def test_a_threshold_that_is_no_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--alpha -1") == 2
    assert capsys.readouterr().err == "nearcast: --alpha is -1; a finite number of at least 0 is needed\n"


def test_a_trade_off_is_written_and_the_cap_is_kept(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--method refined --moves-at-most 20 --trade-off pareto.csv --json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert 0 < metrics["moves"] <= 20
    rows = [[float(cell) for cell in line.split(",")] for line in (files / "pareto.csv").read_text().splitlines()[1:]]
    assert rows[0][:2] == [0, metrics["max_load_before"]]
    assert any(row[1] == metrics["max_load_after"] for row in rows)
    assert all(row[0] <= 20 for row in rows)


PLACES = "subscriber,lat,lon\nu0,60.2,24.9\nü1,59.3,18.1\nu2,59.9,10.8\n"


@pytest.mark.parametrize(
    ("initial", "expected"),
    [
        ("nearest --positions places.csv", {"u0": "east", "ü1": "west", "u2": "west"}),
        ("round_robin", {"u0": "east", "ü1": "west", "u2": "east"}),
    ],
)
def test_subscribers_without_a_site_are_placed(
    files: Path, initial: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (files / "sites.csv").write_text("site,lat,lon\neast,60.1,24.9\nwest,59.3,18.0\n")
    (files / "places.csv").write_text(PLACES)
    (files / "rates.csv").write_text("subscription,rate\ns,1e300\n")
    (files / "subscriptions.csv").write_text("subscriber,subscription\nu0,s\nü1,s\nu2,s\n")
    words = f"--sites sites.csv --subscriptions subscriptions.csv --rates rates.csv --initial {initial}"
    monkeypatch.setattr(sys, "argv", f"nearcast plan balance {words} --method stay --out plan.csv".split())
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert read(files / "plan.csv") == expected


@pytest.mark.parametrize("columns", [("c0",), ("c0", "c1", "c2"), ("x_km", "y_km")])
def test_positions_have_any_number_of_dimensions(
    files: Path, columns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rows(key: str, places: dict[str, int]) -> str:
        lines = [",".join([name, *[str(value)] * len(columns)]) for name, value in places.items()]
        return "\n".join([",".join([key, *columns]), *lines]) + "\n"

    (files / "sites.csv").write_text(rows("site", {"east": 0, "north": 1000}))
    (files / "places.csv").write_text(rows("subscriber", {f"u{i}": 700 if i % 2 else -3 for i in range(200)}))
    (files / "current.csv").write_text("subscriber,site\nu0,north\n")
    assert run(monkeypatch, "--initial nearest --positions places.csv --method stay --json --out plan.csv") == 0
    plan, metrics = read(files / "plan.csv"), json.loads(capsys.readouterr().out)
    assert {name: site for name, site in plan.items() if name != "u0"} == {
        name: "north" if int(name[1:]) % 2 else "east" for name in plan if name != "u0"
    }
    assert (plan["u0"], metrics["moves"], metrics["placed"]) == ("north", 0, len(plan) - 1)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--initial nearest", "--initial nearest needs --positions"),
        ("--initial nearest --positions rates.csv", "sites.csv, row 0 (header): no position; c0,c1,… or x_km,y_km"),
        ("", "subscriptions.csv, row 10: subscriber 'u1' is not a"),
    ],
)
def test_what_is_missing_to_place_them_is_said(
    files: Path, options: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "sites.csv").write_text("site\neast\nnorth\n")
    (files / "current.csv").write_text("subscriber,site\nu0,east\n")
    assert run(monkeypatch, options) == 2
    assert capsys.readouterr().err.startswith(f"nearcast: {reason}")


def test_rates_that_no_float_can_sum_are_refused(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "rates.csv").write_text("subscription,rate\n" + "".join(f"s{k},1e308\n" for k in range(30)))
    assert run(monkeypatch, "--method refined") == 2
    assert "adds up to more than a float holds" in capsys.readouterr().err
