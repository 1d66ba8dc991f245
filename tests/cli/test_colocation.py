"""`nearcast model` and `nearcast plan colocation` as a user types them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nearcast.cli import main

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = "topic,rate,processing_ms,bound_ms\n" + "".join(
    f"t{i:02},{5 + i},{12 + i % 5 * 6},{1500 + 50 * i}\n" for i in range(9)
)


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """The exit code of a command."""
    monkeypatch.setattr("sys.argv", ["nearcast", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, simulated and trained with the commands themselves."""
    folder = tmp_path_factory.mktemp("model")
    with pytest.MonkeyPatch.context() as patch:
        made = run(patch, "model", "simulate", "--runs", 60, "--k", 3, "--seconds", 30, "--out", folder / "s.csv")
        assert made == 0
        words = ("--samples", folder / "s.csv", "--out", folder / "m", "--curves", folder / "c.csv")
        assert run(patch, "model", "train", *words) == 0
    assert (folder / "s.csv").read_text().startswith("run,topic,rate,processing_ms,p90_ms\n0,0,")
    assert (folder / "c.csv").read_text().startswith("topics,runs,training_error,validation_error\n1,")
    return folder / "m"


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    path = tmp_path / "topics.csv"
    path.write_text(TOPICS)
    return path


@pytest.mark.parametrize(
    ("method", "k"), [("ffd", 3), ("lfs", 3), ("hybrid", 3), ("refined", 3), ("exact", 3), ("matching", 2)]
)
def test_every_method_places_every_topic(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    topics: Path,
    method: str,
    k: int,
) -> None:
    out = topics.parent / "plan.csv"
    words = ("--topics", topics, "--model", model, "--k", k, "--seed-size", 2)
    assert run(monkeypatch, "plan", "colocation", *words, "--method", method, "--out", out, "--json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert list(metrics) == ["method", "workers", "predicted_violations", "seconds"]
    lines = out.read_text().splitlines()
    assert lines[0] == "topic,worker"
    assert [line.split(",")[0] for line in lines[1:]] == [f"t{i:02}" for i in range(9)]
    assert len({line.split(",")[1] for line in lines[1:]}) == metrics["workers"]
    assert metrics["predicted_violations"] == 0


def test_a_plan_is_adjusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path
) -> None:
    current = topics.parent / "current.csv"
    words = ("plan", "colocation", "--topics", topics, "--model", model, "--k", 3)
    assert run(monkeypatch, *words, "--out", current) == 0
    before = current.read_text().splitlines()[1:]
    topics.write_text(TOPICS.replace("t00", "new"))  # one went, one came
    capsys.readouterr()
    assert run(monkeypatch, *words, "--current", current) == 0
    after = capsys.readouterr().out.splitlines()[1:]
    assert after[0].startswith("new,")
    assert after[1:] == before[1:]


def test_a_plan_may_still_call_a_worker_broker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path
) -> None:
    current = topics.parent / "current.csv"
    words = ("plan", "colocation", "--topics", topics, "--model", model, "--k", 3)
    assert run(monkeypatch, *words, "--out", current) == 0
    made = current.read_text()
    current.write_text(made.replace("topic,worker", "topic,broker"))
    assert run(monkeypatch, *words, "--current", current) == 0
    assert capsys.readouterr().out == made


def test_there_is_no_seed_because_nothing_is_random(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path
) -> None:
    assert run(monkeypatch, "plan", "colocation", "--topics", topics, "--model", model, "--seed", 1) == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("topic,rate\na,1\n", (), "column 'processing_ms' is missing"),
        ("topic,rate,processing_ms\na,0,20\n", (), "row 1: rate is 0; more than 0 is needed"),
        ("topic,rate,processing_ms\na,-1,20\n", (), "row 1: rate is -1; at least 0 is needed"),
        ("topic,rate,processing_ms\na,5,20\na,5,20\n", (), "row 2: topic 'a' is there twice"),
        (
            "topic,rate,processing_ms\na,5,20\nb,90,20\n",
            (),
            "row 2: topic 'b': 90/s of 20 ms each is more than",
        ),
        ("topic,rate,processing_ms,bound_ms\na,5,20,21\n", (), "row 1: topic 'a': p90 is predicted at"),
        (TOPICS, ("--k", 4), "k is 4; the model was trained for 1 to 3 topics"),
        (TOPICS, ("--method", "matching", "--k", 3), "--method matching is for --k 2"),
        (TOPICS, ("--method", "hybrid", "--k", 3, "--seed-size", 5), "k' is 5"),
        (TOPICS, ("--margin", 1), "--margin is 1"),
        (TOPICS, ("--bound-ms", 0), "--bound-ms is 0"),
        (TOPICS, ("--model", "nowhere"), "nowhere: no latency model there"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    topics: Path,
    text: str,
    options: tuple[object, ...],
    reason: str,
) -> None:
    topics.write_text(text)
    out = topics.parent / "plan.csv"
    words = ("--topics", topics, "--model", model, "--k", 3, *options, "--out", out)
    capsys.readouterr()
    assert run(monkeypatch, "plan", "colocation", *words) == 2
    message = capsys.readouterr().err
    assert reason in message
    assert message.count("nearcast: ") - message.count("warning") == 1
    assert not out.exists()


def test_a_run_that_did_not_measure_every_topic_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    words = ("--runs", 60, "--k", 3, "--seconds", 1, "--out", out)
    assert run(monkeypatch, "model", "simulate", *words) == 0
    rows = [line.split(",")[0] for line in out.read_text().splitlines()[1:]]
    assert 0 < len(set(rows)) < 60
    assert all(rows.count(number) == int(number) % 3 + 1 for number in rows)


def test_samples_of_several_files_are_learned_from_together(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = []
    for seed in (1, 2):
        files += ["--samples", tmp_path / f"{seed}.csv"]
        words = ("--runs", 40, "--k", 2, "--seconds", 30, "--seed", seed, "--overhead-ms", 2, "--out", files[-1])
        assert run(monkeypatch, "model", "simulate", *words) == 0
    capsys.readouterr()
    assert run(monkeypatch, "model", "train", *files, "--out", tmp_path / "m", "--json") == 0
    alone, two = json.loads(capsys.readouterr().out)["accuracy"]
    assert 20 < alone["runs"] <= 40  # overloaded ones do not count
    assert two["runs"] == 40


def test_a_model_of_another_version_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path
) -> None:
    copy = topics.parent / "copy"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes().replace(b'"version": 2', b'"version": 9'))
    assert run(monkeypatch, "plan", "colocation", "--topics", topics, "--model", copy) == 2
    assert "copy: the model has version 9, this Nearcast reads version 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("run,topic,rate,processing_ms\n0,0,1,1\n", "column 'p90_ms' is missing"),
        ("run,topic,rate,processing_ms,p90_ms\n0,0,1,10,0\n", "row 1: p90_ms is 0; more than 0 is needed"),
        (
            "run,topic,rate,processing_ms,p90_ms\n0,0,1,10,12\n0,0,1,10,12\n",
            "row 2: run '0', topic '0' is there twice",
        ),
        ("run,topic,rate,processing_ms,p90_ms\n0,0,1,10,12\n", "row 1: only 1 usable runs of one topic"),
    ],
)
def test_samples_that_cannot_be_learned_from_are_refused(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    reason: str,
) -> None:
    (tmp_path / "s.csv").write_text(text)
    assert run(monkeypatch, "model", "train", "--samples", tmp_path / "s.csv", "--out", tmp_path / "m") == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("margin", ["auto", "0.3"])
def test_a_plan_is_checked_by_simulation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path, margin: str
) -> None:
    words = ("--topics", topics, "--model", model, "--k", 3, "--margin", margin, "--check", "--json")
    assert run(monkeypatch, "plan", "colocation", *words) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["checked_runs"] == (56 if margin == "auto" else 3)  # 500 simulated topics to choose a margin by
    assert 0 <= metrics["late_messages"] <= 0.1
    assert metrics["late_topics"] <= 1 / 9
    assert metrics["worst_p90_ms"] > 10
    assert metrics["margin"] == 0.3 or margin == "auto"


def test_a_checked_plan_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path
) -> None:
    words = ("--topics", topics, "--model", model, "--k", 2, "--check", "--arrivals", "constant")
    assert run(monkeypatch, "plan", "colocation", *words) == 0
    assert "simulated 3 times with a margin of 0.1: 0.00% of the topics" in capsys.readouterr().err


def test_the_highest_rates_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    words = ("model", "limits", "--model", model, "--json")
    assert run(monkeypatch, *words, "--processing-ms", 15, "--processing-ms", 30, "--bound-ms", 500) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["processing_ms"] for row in rows] == [15, 30]
    assert 1 > rows[0]["load"] > 0.4
    assert rows[0]["max_rate"] > rows[1]["max_rate"]
    assert run(monkeypatch, *words, "--processing-ms", 30, "--bound-ms", 1) == 0
    assert json.loads(capsys.readouterr().out)[0]["max_rate"] == 0


@pytest.mark.parametrize("margin", ["some", "1", "-0.1", "nan"])
def test_a_margin_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, topics: Path, margin: str
) -> None:
    assert run(monkeypatch, "plan", "colocation", "--topics", topics, "--model", model, "--margin", margin) == 2
    assert "--margin is" in capsys.readouterr().err


@pytest.mark.parametrize(
    "rows",
    [
        "", "only,5,20,1000\n", "a,5,20,1000\nb,5,20,1000\nc,5,20,1000\nd,5,20,1000\n",
        "京都 🚲,5,20,1000\nñ,6,30,1000\n",
        "fast,1e300,20,1000\n", "slow,5,1e300,1000\n", "rare,1e-300,20,1000\n", "short,5,1e-300,1000\n",
        "patient,5,20,1e300\n", "hasty,5,20,1e-300\n", "both,1e300,1e300,1000\nsmall,5,20,1000\n", "none,5,nan,1000\n",
    ],
)  # fmt: skip
def test_odd_topics_give_a_plan_or_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path, rows: str
) -> None:
    topics = tmp_path / "topics.csv"
    topics.write_text("topic,rate,processing_ms,bound_ms\n" + rows)
    for method, k in (("ffd", 3), ("lfs", 3), ("hybrid", 3), ("refined", 3), ("exact", 3), ("matching", 2)):
        words = ("--topics", topics, "--model", model, "--k", k, "--method", method, "--check", "--json")
        code = run(monkeypatch, "plan", "colocation", *words)
        printed = capsys.readouterr()
        problems = [line for line in printed.err.splitlines() if not line.startswith("nearcast: warning: ")]
        if code:
            assert (code, len(problems)) == (2, 1), (method, printed.err)
            assert problems[0].startswith("nearcast: "), method
        else:
            assert json.loads(printed.out)["workers"] >= 1, method
            assert not problems, (method, problems)
