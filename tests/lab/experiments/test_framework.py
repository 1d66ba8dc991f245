"""How experiments are declared, run, estimated, drawn and judged."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast.cli import main
from nearcast.errors import InputError
from nearcast.lab.experiments import catalog
from nearcast.lab.experiments.experiment import Claim, Experiment, Panel, Task, verdict
from nearcast.lab.experiments.figure import draw
from nearcast.lab.experiments.page import write_page
from nearcast.lab.experiments.results import Estimate, Results, estimate, read, write
from nearcast.lab.experiments.sweep import ExperimentError, sweep
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from nearcast.lab.experiments.experiment import Point, Row


def measure(task: Task) -> Iterator[Row]:
    if task.number("n") == 13:
        raise InputError("13 is refused")
    for method, factor in (("one", 1.0), ("two, |", 2.0)):
        yield {"method": method, "cost": factor * task.number("n") * (1 + task.seed / 10)}


def points(quick: bool) -> Sequence[Point]:
    return [{"n": float(n), "kind": kind} for kind in ("a", "b") for n in ((1, 2) if quick else (1, 2, 3))]


def claims(results: Results) -> list[Claim]:
    ratio = results.ratio("cost", {"method": "two, |"}, {"method": "one"})
    return [Claim("Two costs more.", "twice", ratio.percent(), verdict(ratio.low > 1))]


PLAIN = Experiment(
    name="plain", paper="003", figure="Fig. 0", title="Costs", about="", points=points, seeds=(3, 5), measure=measure,
    claims=claims, panels=[Panel("n", "cost", "n", "cost", limits={"A": 3.0}), Panel("kind", "cost", "kind", "cost")],
)  # fmt: skip


def test_points_times_seeds_quick_and_in_full() -> None:
    assert len(PLAIN.tasks(quick=True)) == 4 * 3
    assert len(PLAIN.tasks(quick=False)) == 6 * 5
    assert [task.seed for task in PLAIN.tasks(quick=True, seeds=2)][:4] == [1, 2, 1, 2]


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_are_in_the_order_of_the_tasks_however_they_were_run(processes: int) -> None:
    shares: list[float] = []
    results = sweep(PLAIN, PLAIN.tasks(quick=True), shares.append, processes=processes)
    assert results.rows[:2] == [
        {"n": 1.0, "kind": "a", "seed": 1.0, "method": "one", "cost": 1.1},
        {"n": 1.0, "kind": "a", "seed": 1.0, "method": "two, |", "cost": 2.2},
    ]
    assert len(results.rows) == 24
    assert sorted(shares) == shares
    assert shares[-1] == 1.0


def sweep_with_spark(file: str) -> None:
    """Two tasks on Spark, by the test below in a process of its own: it stops its Spark, and other tests share one."""
    experiment = catalog.load("monitoring-bytes")
    write(sweep(experiment, experiment.tasks(quick=True)[:2], no_progress, master="local[2]"), Path(file))


@pytest.mark.timeout(900)
def test_spark_gives_the_same_rows(tmp_path: Path) -> None:
    command = f"from {__name__} import sweep_with_spark; sweep_with_spark({str(tmp_path / 'spark.csv')!r})"
    subprocess.run([sys.executable, "-c", command], check=True)
    experiment = catalog.load("monitoring-bytes")
    write(sweep(experiment, experiment.tasks(quick=True)[:2], no_progress, processes=1), tmp_path / "here.csv")
    found = read(tmp_path / "spark.csv")
    assert found.about["engine"] == "Spark, local[2]"
    assert found.rows == read(tmp_path / "here.csv").rows


def endless(task: Task) -> Iterator[Row]:
    assert task.data is not None
    (task.data / str(os.getpid())).touch()
    time.sleep(600)
    yield {}


def sweep_endlessly(folder: str) -> None:
    """Two tasks in two processes that say who they are and never end; run by the test below in a process of its own."""
    experiment = Experiment(**{**PLAIN.__dict__, "measure": endless})
    sweep(experiment, [Task({"n": 1.0}, seed, data=Path(folder)) for seed in (1, 2)], no_progress, processes=2)


def test_the_processes_of_a_killed_sweep_end(tmp_path: Path) -> None:
    command = f"from {__name__} import sweep_endlessly; sweep_endlessly({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", command]) as parent:
        try:
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        finally:
            parent.kill()
    wait_until(lambda: not any(is_alive(int(file.name)) for file in tmp_path.iterdir()))


def test_the_processes_of_an_interrupted_sweep_end(tmp_path: Path) -> None:
    """It waited for tasks that were running, minutes in a large experiment."""
    restored = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell may ignore it
    command = f"{restored}; from {__name__} import sweep_endlessly; sweep_endlessly({str(tmp_path)!r})"
    with subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.DEVNULL) as parent:
        try:
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
            parent.send_signal(signal.SIGINT)
            assert parent.wait(60) != 0
        finally:
            parent.kill()
    wait_until(lambda: not any(is_alive(int(file.name)) for file in tmp_path.iterdir()))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_failed_task_is_named() -> None:
    for processes in (1, 2):
        with pytest.raises(ExperimentError, match=r"the task with n 13.0, kind a, seed 4 failed: 13 is refused"):
            sweep(PLAIN, [Task({"n": 13.0, "kind": "a"}, 4)] * 2, no_progress, processes=processes)


def test_a_missing_file_of_real_data_is_refused(tmp_path: Path) -> None:
    reading = Experiment(**{**PLAIN.__dict__, "data": "graph/edges.txt"})
    assert reading.tasks(quick=True)[0].data is None
    with pytest.raises(InputError, match=r"there is no file .*graph/edges.txt; plain reads it"):
        reading.tasks(quick=True, data=tmp_path)


def test_estimates_have_students_interval() -> None:
    assert estimate([1.0, 2.0, 3.0]) == Estimate(2.0, pytest.approx(2.4841, abs=1e-4), 3)
    assert estimate([5.0]) == Estimate(5.0, 0.0, 1)
    assert Estimate(0.9, 0.02, 3).percent() == "-10.0 ± 2.0 %"
    assert Estimate(1.5, 0.0, 1).text(1, " ms") == "1.5 ms"
    with pytest.raises(InputError, match="no row was selected"):
        estimate([])


def test_ratios_are_paired_by_task() -> None:
    results = sweep(PLAIN, PLAIN.tasks(quick=True), no_progress, processes=1)
    ratio = results.ratio("cost", {"method": "two, |"}, {"method": "one"})
    assert ratio == Estimate(2.0, pytest.approx(0.0), 3)
    assert results.difference("cost", {"method": "one"}, {"method": "one"}).mean == 0.0
    # A side may fix a column of the point.
    assert results.ratio("cost", {"n": 2.0}, {"n": 1.0}, method="one").mean == pytest.approx(2.0)


def test_tables_figure_and_page(tmp_path: Path) -> None:
    results = sweep(PLAIN, PLAIN.tasks(quick=True), no_progress, processes=1)
    folder = tmp_path / "results"
    write(results, folder / "plain.csv")
    draw(PLAIN, results, folder / "plain.png")
    again = read(folder / "plain.csv")
    assert again.rows == [{**row, "cost": pytest.approx(row["cost"])} for row in results.rows]
    np.testing.assert_allclose(again.numbers("cost"), results.numbers("cost"))
    other = Experiment(**{**PLAIN.__dict__, "name": "other"})
    page = write_page([PLAIN, other], folder, {"other": "needs root"})
    text = page.read_text()
    assert page == tmp_path / "results.md"
    command = "[`nearcast lab run plain --quick`](#plain)"
    assert f"| Two costs more. | twice | 100.0 ± 0.0 % | **holds** | {command} |" in text
    assert "![Costs](results/plain.png)" in text
    assert "`other` (needs root)" in text
    assert (folder / "plain.png").read_bytes()[:4] == b"\x89PNG"


def test_values_of_one_seed_count_once() -> None:
    rows = [{"n": n, "seed": seed, "cost": seed + n} for n in (0.0, 10.0) for seed in (1.0, 2.0, 3.0)]
    results = Results(rows, ["n", "seed"], {})
    assert results.mean("cost") == Estimate(7.0, pytest.approx(2.4841, abs=1e-4), 3)
    assert results.mean("cost", seed=1.0) == Estimate(6.0, 0.0, 1)


def test_the_page_names_what_failed_and_what_cannot_be_judged(tmp_path: Path) -> None:
    results = sweep(PLAIN, PLAIN.tasks(quick=True), no_progress, processes=1)
    folder = tmp_path / "results"
    for name in ("plain", "broken", "failed"):
        write(results, folder / f"{name}.csv")
    broken = Experiment(
        **{**PLAIN.__dict__, "name": "broken", "claims": lambda results: results.mean("no such metric")}
    )
    failed = Experiment(**{**PLAIN.__dict__, "name": "failed"})
    text = write_page([broken, failed, PLAIN], folder, {"failed": "failed: no memory"}).read_text()
    assert "2 claims: 2 hold" in text
    assert "`broken` (broken.csv cannot be judged: InputError: an estimate needs at least one value" in text
    assert "`failed` (failed: no memory; what is shown is of an earlier run)" in text


def refuse(task: Task) -> Iterator[Row]:
    raise ValueError(f"nothing works in {task.point}")


def test_an_experiment_that_fails_does_not_keep_the_others_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Experiment(**{**PLAIN.__dict__, "name": "failing", "measure": refuse})
    unjudged = Experiment(**{**PLAIN.__dict__, "name": "unjudged", "claims": lambda results: results.mean("nothing")})
    monkeypatch.setattr(catalog, "load_all", lambda: [failing, unjudged, PLAIN])
    command = ["nearcast", "lab", "run", "all", "--quick", "--processes", "1", "--out", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code != 0
    assert "failed: failing, unjudged" in capsys.readouterr().err
    page = (tmp_path / "results.md").read_text()
    assert "1 claims: 1 hold" in page
    assert "`failing` (failed: nothing works in {'n': 1.0, 'kind': 'a'})" in page
    assert "`unjudged` (" in page


def test_an_interrupted_run_is_resumed_with_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    second = Experiment(**{**PLAIN.__dict__, "name": "second"})
    command = ["nearcast", "lab", "run", "all", "--quick", "--processes", "1", "--out", str(tmp_path / "results")]

    def run(experiments: list[Experiment], *more: str) -> str:
        monkeypatch.setattr(catalog, "load_all", lambda: experiments)
        monkeypatch.setattr(sys, "argv", [*command, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return capsys.readouterr().err

    run([PLAIN])
    refused = Experiment(**{**PLAIN.__dict__, "measure": refuse})  # it fails if it is measured again
    said = run([refused, second], "--resume")
    assert "plain: " in said
    assert "results has it" in said
    assert "2 claims: 2 hold" in (tmp_path / "results.md").read_text()
    assert "has it" not in run([PLAIN, second], "--resume", "--seeds", "2")  # other tasks


def test_a_script_gets_the_claims_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(catalog, "load_all", lambda: [PLAIN])
    command = ["nearcast", "lab", "run", "all", "--quick", "--processes", "1", "--out", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", [*command, "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (claim,) = json.loads(capsys.readouterr().out)
    assert claim["verdict"] == "holds"
    assert claim.keys() == {"claim", "paper", "ours", "verdict", "why"}


def test_the_page_in_docs_is_what_its_tables_say(tmp_path: Path) -> None:
    """Judged again from the tables beside it; the README quotes its count and one figure."""
    docs = Path(__file__).parents[3] / "docs"
    shutil.copytree(docs / "results", tmp_path / "results")
    page = write_page(catalog.load_all(), tmp_path / "results").read_text()
    assert (docs / "results.md").read_text() == page
    found = re.search(r"(\d+) claims: (\d+) hold, (\d+) hold in part, (\d+) differ\.", page)
    assert found is not None
    claims, hold, partly, differ = found.groups()
    readme = (docs.parent / "README.md").read_text()
    assert f"| {claims}: {hold} hold, {partly} in part, {differ} differ |" in readme
    downtime = re.search(r"; 40 ms one way: ([^,]+ ms), told", page)
    assert downtime is not None
    assert f"| {downtime[1]} | `nearcast lab run migration`" in readme


def test_every_listed_experiment_is_there_under_its_name() -> None:
    for name in catalog.CATALOG:
        experiment = catalog.load(name)
        assert experiment.name == name
        assert experiment.points(True)
        assert experiment.measure.__module__ in sys.modules  # a function that processes can import
        assert len(experiment.tasks(quick=True)) <= len(experiment.tasks(quick=False))


def test_an_unknown_experiment_or_prefix_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["nearcast", "lab", "run", "all", "--only", "nothing"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--only is 'nothing'; no experiment begins so: " in capsys.readouterr().err
