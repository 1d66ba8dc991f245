"""What `nearcast demo --json` prints. No city is started: what it did is given."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nearcast.cli.app import main
from nearcast.lab.demo import run as demo_run
from nearcast.lab.demo.account import CityAccount, PathLatency
from nearcast.lab.demo.run import DemoResult
from nearcast.lab.scenarios.observed_moves import ObservedMove

NAN = float("nan")
PATHS = (PathLatency("drone to swarm", 12, 20.5, 31.0, 44.0), PathLatency("report to people", 0, NAN, NAN, NAN))


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (3, 1)])
def test_a_script_gets_one_json_value_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lost: int, code: int
) -> None:
    account = CityAccount(PATHS, 0.055, 0.858, 2, 1.5, lost, 0, 0, ("fire, 420 m from you",))
    moves = (ObservedMove(12.0, "topic", "swarm.1", "harbour", "campus", "latency"),)

    async def played(options: Any, say: Any, done: Any) -> None:
        say("Act 5: A latecomer")
        done(DemoResult(account, moves, True))

    monkeypatch.setattr(demo_run, "run_demo", played)
    monkeypatch.setattr(sys, "argv", ["nearcast", "demo", "--json", "--logs", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code or 0) == code
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["account"]["above"], told["account"]["lost"]) == (0.055, lost)
    assert [path["p90"] for path in told["account"]["paths"]] == [31.0, None]
    assert told["moves"][0]["target"] == "campus"
    assert "Act 5: A latecomer" in said.err
