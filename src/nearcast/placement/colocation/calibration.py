"""What a real worker adds to each message's processing time, found from a few measured runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.colocation.worker_simulation import p90_ms

if TYPE_CHECKING:
    from nearcast.placement.colocation.worker_simulation import Samples, SimulatedWorker

__all__ = ["overhead_ms"]

_TRIED = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
_REPEATS = 10


def overhead_ms(measured: Samples, worker: SimulatedWorker, seed: int = 0) -> float:
    """The overhead with which simulated runs of the same topics come closest to the measured ones (in log p90)."""
    errors = []
    for overhead in _TRIED:
        generator = np.random.default_rng(seed)
        with_it, error = replace(worker, overhead_ms=overhead), 0.0
        for run in np.unique(measured.run):
            rows = measured.run == run
            rates, processing = measured.rate[rows], measured.processing_ms[rows]
            tries = np.log([p90_ms(rates, processing, with_it, generator) for _ in range(_REPEATS)])
            expected = np.where(np.isfinite(tries), tries, np.nan)
            missed = np.log(measured.p90_ms[rows]) - np.nanmean(expected, axis=0)
            error += float(np.nansum(missed**2))
        errors.append(error)
    return _TRIED[int(np.argmin(errors))]
