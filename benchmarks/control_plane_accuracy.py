"""How well a model learned mostly from simulation predicts a real worker. ProfileRun by control_plane.py.

NEARCAST_SAMPLES names the file that `nearcast profile worker` wrote, NEARCAST_SECONDS the length of its runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from benchmarks.measure import Figure

from nearcast.cli.model import read_samples
from nearcast.placement.colocation.training import Training, runs_of_size, train
from nearcast.placement.colocation.worker_simulation import (
    Samples,
    SimulatedWorker,
    joined,
    overhead_ms,
    p90_ms,
    simulate,
)

__all__ = ["model"]

SIMULATED, LEARNED_FROM, SPLITS = 6000, 20, 3


def model() -> Iterable[Figure]:
    """p90 of held-out measured runs, predicted by a model of simulated and a few measured ones."""
    path = os.environ.get("NEARCAST_SAMPLES")
    if not path:
        yield Figure("model accuracy", "not measured", "set NEARCAST_SAMPLES to the file of `nearcast profile worker`")
        return
    measured = read_samples(Path(path))
    seconds = float(os.environ.get("NEARCAST_SECONDS", "20"))
    # Lengths alike: the p90 of a short run of a busy worker is lower than that of a long one.
    worker = SimulatedWorker(seconds=seconds, load=(0.05, 0.95))
    runs = np.unique(measured.run)
    k = int(np.unique(measured.run, return_counts=True)[1].max())
    scores: dict[str, list[float]] = {name: [] for name in ("simulated", "both", "error", "same")}
    overheads = []
    for split in range(SPLITS):
        rng = np.random.default_rng(split)
        few = rng.permutation(runs)[:LEARNED_FROM]
        learned, tested = _of(measured, np.isin(measured.run, few)), _of(measured, ~np.isin(measured.run, few))
        overheads.append(overhead_ms(learned, worker, split))
        plain = _finite(simulate(SIMULATED, k, worker, split))
        tuned = _finite(simulate(SIMULATED, k, replace(worker, overhead_ms=overheads[-1]), split))
        target, simulated = _predicted(plain, tested, split)
        _, both = _predicted(joined([tuned, learned]), tested, split)
        scores["simulated"].append(_r2(target, simulated))
        scores["both"].append(_r2(target, both))
        scores["error"].append(float(np.median(np.abs(np.expm1(both - target)))))
        scores["same"].append(_noise(tested, replace(worker, overhead_ms=overheads[-1]), split))
    mean = {name: float(np.mean(values)) for name, values in scores.items()}
    held_out = len(runs) - LEARNED_FROM
    what = f"R² of log p90, {held_out} measured runs of 1 to {k} topics held out, mean of {SPLITS} splits"
    baseline = f"{SIMULATED} simulated alone: {mean['simulated']:.3f}; two simulations of one run: {mean['same']:.3f}"
    yield Figure(what, f"{mean['both']:.3f} ({min(scores['both']):.3f} to {max(scores['both']):.3f})", baseline)
    yield Figure(
        f"the same: median error of a topic's p90, learned from {SIMULATED} simulated and {LEARNED_FROM} measured runs",
        f"{mean['error']:.1%}", f"overhead found: {np.mean(overheads):.2f} ms a message",
    )  # fmt: skip


def _of(samples: Samples, rows: np.ndarray) -> Samples:
    columns = (samples.run, samples.topic, samples.rate, samples.processing_ms, samples.p90_ms)
    return Samples(*(column[rows] for column in columns))


def _finite(samples: Samples) -> Samples:
    return _of(samples, ~np.isin(samples.run, samples.run[~np.isfinite(samples.p90_ms)]))


def _predicted(learned: Samples, tested: Samples, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """log p90 of the held-out runs: measured, and by a model of the others."""
    made, _ = train(learned, Training(seed=seed))
    targets, found = [], []
    for size in range(1, made.k + 1):
        topics, target = runs_of_size(tested, size)
        if len(topics):
            targets.append(target.ravel())
            found.append(np.log(made.predict_ms(topics)).ravel())
    return np.concatenate(targets), np.concatenate(found)


def _noise(samples: Samples, worker: SimulatedWorker, seed: int) -> float:
    """R² between two simulations of the same runs: what chance leaves of any prediction of runs this short."""
    rng = np.random.default_rng(seed)
    sides: list[list[np.ndarray]] = [[], []]
    for run in np.unique(samples.run):
        rows = samples.run == run
        for side in sides:
            side.append(p90_ms(samples.rate[rows], samples.processing_ms[rows], worker, rng))
    one, other = (np.log(np.concatenate(side)) for side in sides)
    both = np.isfinite(one) & np.isfinite(other)
    return _r2(one[both], other[both])


def _r2(target: np.ndarray, found: np.ndarray) -> float:
    return float(1 - ((target - found) ** 2).sum() / ((target - target.mean()) ** 2).sum())
