"""`nearcast model …`: simulate samples, learn a latency model from samples."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from nearcast.cli.output import print_rows
from nearcast.cli.progress_bar import progress
from nearcast.cli.tables import Column, read_table, write_table
from nearcast.errors import InputError
from nearcast.placement.colocation.encoding import DESCRIPTION, WEIGHTS, decode, encode
from nearcast.placement.colocation.latency_model import LatencyModel
from nearcast.placement.colocation.problem import max_rate
from nearcast.placement.colocation.training import Training, learning_curve
from nearcast.placement.colocation.training import train as train_model
from nearcast.placement.colocation.worker_simulation import Arrivals, Samples, SimulatedWorker, joined
from nearcast.placement.colocation.worker_simulation import simulate as simulate_runs

__all__ = ["app", "load_model", "read_samples"]

app = typer.Typer()

SAMPLES = [
    Column("run", "text"),
    Column("topic", "text"),
    *(Column(name, positive=True) for name in ("rate", "processing_ms", "p90_ms")),
]


@app.command()
def simulate(
    out: Annotated[Path, typer.Option(help="Where the samples go: run, topic, rate, processing_ms, p90_ms.")],
    runs: Annotated[int, typer.Option(min=1, help="Number of runs, spread evenly over 1 to K topics.")] = 6000,
    k: Annotated[int, typer.Option(min=1, help="Most topics on one worker.")] = 6,
    arrivals: Annotated[Arrivals, typer.Option(help="How messages of a topic arrive.")] = "poisson",
    seconds: Annotated[float, typer.Option(min=1, help="Simulated length of a run.")] = 120.0,
    processing_ms: Annotated[
        tuple[float, float], typer.Option(help="Shortest and longest processing time of a message.")
    ] = (10.0, 40.0),
    overhead_ms: Annotated[
        float,
        typer.Option(min=0, help="What a real worker adds to each message: `nearcast profile worker` measures it."),
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object about what was done.")] = False,
) -> None:
    """Simulate a worker that serves the topics of a run one message at a time, and write what it measures.

    Example: nearcast model simulate --out runs.csv
    """
    shortest, longest = processing_ms
    if not 0 < shortest <= longest < np.inf:
        raise InputError(f"--processing-ms is {shortest:g} {longest:g}; two rising positive numbers are needed")
    start = time.perf_counter()
    with progress("Simulating") as advance:
        worker = SimulatedWorker(
            arrivals=arrivals, seconds=seconds, processing_ms=processing_ms, overhead_ms=overhead_ms
        )
        samples = simulate_runs(runs, k, worker, seed, advance)
    # In a short run a topic may have had no message; without its row the run would look like a smaller one.
    measured = ~np.isin(samples.run, samples.run[~np.isfinite(samples.p90_ms)])
    write_table(out, {c.name: getattr(samples, c.name)[measured] for c in SAMPLES})
    if as_json:
        print(json.dumps({"runs": runs, "rows": int(measured.sum()), "seconds": time.perf_counter() - start}))


@app.command()
def train(
    samples: Annotated[
        list[Path], typer.Option(help="CSV or Parquet: run, topic, rate, processing_ms, p90_ms. May be given twice.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the model; made if it is not there.")],
    curves: Annotated[Path | None, typer.Option(help="Also write learning curves here: topics, runs, errors.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object with the accuracy.")] = False,
) -> None:
    """Learn the 90th percentile latency of topics that share a worker from runs that measured it.

    Example: nearcast model train --samples runs.csv --out model.bin
    """
    start = time.perf_counter()
    data = joined([read_samples(path) for path in samples])
    settings = Training(seed=seed)
    try:
        with progress("Training") as advance:
            model, report = train_model(data, settings, advance)
        with progress("Learning curves"):
            points = learning_curve(data, settings) if curves else ()
    except InputError as error:
        raise InputError(f"{', '.join(map(str, samples))}, row {len(data.run)}: {error}") from None
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is not a folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in encode(model, report).items():
            (out / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}") from None
    if curves:
        names = list(asdict(points[0]))
        write_table(curves, {name: [getattr(point, name) for point in points] for name in names})
    seconds = time.perf_counter() - start
    if as_json:
        accuracy = [asdict(line) for line in report]
        print(json.dumps({"k": model.k, "samples": len(data.run), "accuracy": accuracy, "seconds": seconds}))
    else:
        for line in report:
            print(f"{line.topics} topics: R² {line.training:.3f} on {line.runs} runs, {line.test:.3f} held out")


@app.command()
def limits(
    model: Annotated[Path, typer.Option(help="Folder that `nearcast model train` made.")],
    processing_ms: Annotated[
        list[float] | None, typer.Option(help="Processing time of a message; may be given several times.")
    ] = None,
    bound_ms: Annotated[float, typer.Option(help="Latency bound of the topic.")] = 1000.0,
    margin: Annotated[float, typer.Option(help="Share of the bound that is kept free.")] = 0.1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Show r_max: the highest rate at which a topic alone on a worker meets its bound.

    Example: nearcast model limits --model model.bin
    """
    wanted = processing_ms or [10.0, 20.0, 30.0, 40.0]
    if not 0 < bound_ms < np.inf or not 0 <= margin < 1 or not all(0 < p < np.inf for p in wanted):
        raise InputError("--bound-ms and --processing-ms must be above 0, --margin at least 0 and less than 1")
    learned = load_model(model)
    rows = []
    for processing in wanted:
        rate = max_rate(learned, processing, bound_ms, margin)
        rows.append({"processing_ms": processing, "max_rate": rate, "load": rate * processing / 1000})
    print_rows(rows, as_json, "")


def load_model(folder: Path) -> LatencyModel:
    """The model in a folder that `nearcast model train` made."""
    try:
        files = {name: (folder / name).read_bytes() for name in (DESCRIPTION, WEIGHTS)}
    except OSError as error:
        raise InputError(f"{folder}: no latency model there ({error.strerror}); see nearcast model train") from None
    try:
        return decode(files)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def read_samples(path: Path) -> Samples:
    """The samples in a file, checked."""
    table = read_table(path, SAMPLES, key=["run", "topic"])
    run, topic = (np.unique(table[name], return_inverse=True)[1] for name in ("run", "topic"))
    return Samples(run, topic, table["rate"], table["processing_ms"], table["p90_ms"])
