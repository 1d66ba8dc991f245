"""`nearcast profile …`: measure what a worker and a broker of this machine can take."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path
from typing import Annotated

import typer

from nearcast.cli.progress_bar import progress
from nearcast.errors import InputError

app = typer.Typer()
COLUMNS = ["run", "topic", "rate", "processing_ms", "p90_ms"]


@app.command()
def worker(
    out: Annotated[
        Path, typer.Option(help="Samples for `nearcast model train`; runs that are in it are not repeated.")
    ],
    runs: Annotated[int, typer.Option(min=1, help="Runs in all, spread evenly over 1 to K topics.")] = 60,
    k: Annotated[int, typer.Option(min=1, help="Most topics in the worker.")] = 4,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a run.")] = 20.0,
    processing_ms: Annotated[tuple[float, float], typer.Option(help="Shortest and longest processing time.")] = (
        10,
        40,
    ),
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object about what was done.")] = False,
) -> None:
    """Measure p90 against rate, processing time and co-located topics with a real worker. It can be resumed.

    Example: nearcast profile worker --out runs.csv --seconds 2
    """
    from nearcast.cli.model import read_samples
    from nearcast.lab.profiling.worker_profile import draw, measure, one_site
    from nearcast.placement.colocation.worker_simulation import SimulatedWorker, overhead_ms

    if not 0 < processing_ms[0] <= processing_ms[1]:
        raise InputError(f"--processing-ms is {processing_ms[0]:g} {processing_ms[1]:g}; two rising numbers are needed")
    done = _runs_in(out)
    wanted = [n for n in range(runs) if str(n) not in done]

    async def work() -> None:
        async with one_site(k) as url:
            with progress("Measuring") as advance:
                for position, number in enumerate(wanted):
                    run = draw(number, k, seed, processing_ms)
                    found = await measure(run, url, seconds)
                    if all(p90 == p90 for p90 in found):  # a topic without a message measures nothing
                        _append(out, [
                            [number, n, run.rates[n], run.processing_ms[n], p90] for n, p90 in enumerate(found)
                        ])  # fmt: skip
                    advance((position + 1) / len(wanted))

    if wanted:
        asyncio.run(work())
    if not out.exists():
        raise InputError(f"no run of {seconds:g} s had a message of every topic; --seconds must be longer")
    overhead = overhead_ms(read_samples(out), SimulatedWorker(seconds=seconds))
    if as_json:
        said = {"runs": runs, "measured_now": len(wanted), "resumed_after": len(done), "overhead_ms": overhead}
        typer.echo(json.dumps(said))
    else:
        typer.echo(
            f"A message costs about {overhead:g} ms beyond its processing; to learn from simulated runs as well:"
        )
        typer.echo(
            f"nearcast model simulate --overhead-ms {overhead:g} --seconds {seconds:g} --k {k} --out simulated.csv"
        )
        typer.echo(f"nearcast model train --samples simulated.csv --samples {out} --out model")


@app.command()
def broker(
    subscribers: Annotated[int, typer.Option(min=1, help="Each message goes to so many.")] = 10,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a payload.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="Length of a step.")] = 3.0,
    first_rate: Annotated[
        float, typer.Option(min=1, help="Messages per second out of the broker, to begin with.")
    ] = 20_000,
    growth: Annotated[float, typer.Option(min=1.05, help="Each step is so many times the one before.")] = 1.5,
    tolerance: Annotated[
        float, typer.Option(min=1.1, help="p95 above so many times the best counts as degraded.")
    ] = 3.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find R_out: the output rate above which p95 latency degrades. The load is made on this machine, too.

    Example: nearcast profile broker --seconds 2
    """
    import uvloop

    from nearcast.lab.profiling.broker_profile import profile

    async def work() -> list[dict[str, float]]:
        steps = []
        async for step in profile(subscribers, size, seconds, first_rate, growth, tolerance):
            steps.append({"rate_out": step.rate_out, "delivered": step.delivered, "p95_ms": step.p95_ms})
            if not as_json:
                typer.echo(
                    f"{step.rate_out:>10.0f} messages/s out: {step.delivered:>9.0f} delivered, p95 {step.p95_ms:.2f} ms"
                )
        return steps

    steps = uvloop.run(work())
    good = [step["rate_out"] for step in steps[:-1]]
    if as_json:
        typer.echo(json.dumps({"rate_out_limit": max(good, default=0.0), "steps": steps}))
    else:
        typer.echo(f"rate_out_limit = {max(good, default=0.0):.0f}")


def _runs_in(path: Path) -> set[str]:
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != COLUMNS:
            raise InputError(
                f"{path}: its columns are {rows.fieldnames}; {','.join(COLUMNS)} are needed to continue with it"
            )
        return {row["run"] for row in rows}


def _append(path: Path, rows: list[list[object]]) -> None:
    """A run at a time, so that a file that is cut short has whole runs."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(COLUMNS)
        writer.writerows(rows)
