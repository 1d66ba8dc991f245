"""Learning the latency model from samples, as the paper does: one network per number of co-located topics."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.placement.colocation.latency_model import (
    IsolatedModel,
    LatencyModel,
    LatencyNetwork,
    Tail,
    topic_features,
)
from nearcast.placement.progress import no_progress

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats, Ints
    from nearcast.placement.colocation.worker_simulation import Samples
    from nearcast.placement.progress import Advance

__all__ = ["Accuracy", "CurvePoint", "Training", "Validation", "learning_curve", "runs_of_size", "train", "validate"]

DEGREE = 4
ISOLATED_L2 = 1e-4
LEAST_RUNS = 10
TAIL_LOADS = np.array([0.3, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.94, 0.97, 1.0])
LEAST_NEAR = 30  # topics whose errors make one knot of a tail


@dataclass(frozen=True)
class Training:
    """The paper's settings: ReLU, L-BFGS, two layers of 40 (100 for six topics), 5 % of the runs held out."""

    neurons: int = 40
    neurons_from_six: int = 100
    l2: float = 0.1
    iterations: int = 200
    held_out: float = 0.05
    tail: float = 0.95  # of the runs stay below what is predicted
    seed: int = 0


@dataclass(frozen=True)
class Accuracy:
    """R² of log p90 for one number of co-located topics."""

    topics: int
    runs: int
    training: float
    test: float


@dataclass(frozen=True)
class Validation:
    """R² of log p90 on samples the model has not seen: as learned, and made monotone."""

    topics: int
    runs: int
    learned: float
    monotone: float


@dataclass(frozen=True)
class CurvePoint:
    """One point of a learning curve: errors are 1 - R² on the runs learned from and on runs held out."""

    topics: int
    runs: int
    training_error: float
    validation_error: float


def runs_of_size(samples: Samples, size: int) -> tuple[Floats, Floats]:
    """The runs of exactly `size` topics: features runs × topics × (p, r, d), and log p90 runs × topics."""
    _, run, count = np.unique(samples.run, return_inverse=True, return_counts=True)
    rows = np.flatnonzero(count[run] == size)
    rows = rows[np.argsort(run[rows], kind="stable")]
    features = topic_features(samples.rate[rows], samples.processing_ms[rows])
    return features.reshape(-1, size, 3), np.log(samples.p90_ms[rows]).reshape(-1, size)


def train(
    samples: Samples, settings: Training, advance: Advance = no_progress
) -> tuple[LatencyModel, tuple[Accuracy, ...]]:
    """Learn a model for as many topics as the largest run has; whole runs are held out to test it."""
    largest = int(np.unique(samples.run, return_counts=True)[1].max())
    report = []
    parts: list[IsolatedModel | LatencyNetwork] = []
    tails = []
    for size in range(1, largest + 1):
        topics, target = _usable(samples, size)
        kept, tested = _split(len(topics), settings)
        part = _fit(topics[kept], target[kept], settings)
        parts.append(part)
        tails.append(_tail(part, topics, target, settings.tail))
        training, test = (_r2(part, topics[rows], target[rows]) for rows in (kept, tested))
        report.append(Accuracy(size, len(topics), training, test))
        advance(size**2 / largest**2)
    isolated, *networks = parts
    assert isinstance(isolated, IsolatedModel)
    learned = tuple(n for n in networks if isinstance(n, LatencyNetwork))
    return LatencyModel(isolated, learned, tuple(tails)), tuple(report)


def validate(model: LatencyModel, samples: Samples) -> tuple[Validation, ...]:
    """R² on samples of their own, for each number of topics."""
    report = []
    model = model.mean()
    for size in range(1, model.k + 1):
        topics, target = _usable(samples, size)
        learned = model.log_latency_of_sets(topics)
        monotone = np.log(model.predict_ms(topics))
        report.append(Validation(size, len(topics), _score(target, learned), _score(target, monotone)))
    return tuple(report)


def learning_curve(
    samples: Samples, settings: Training, shares: tuple[float, ...] = (0.1, 0.2, 0.4, 0.7, 1.0)
) -> tuple[CurvePoint, ...]:
    """Training and validation error as the number of runs grows, for each number of topics in the samples.

    A fifth of the runs validates. Errors that meet at a low value: neither bias nor variance is high.
    """
    points = []
    for size in range(1, int(np.unique(samples.run, return_counts=True)[1].max()) + 1):
        topics, target = _usable(samples, size)
        kept, validating = _split(len(topics), replace(settings, held_out=0.2))
        for runs in (max(2, round(share * len(kept))) for share in shares):
            rows = kept[:runs]
            part = _fit(topics[rows], target[rows], settings)
            errors = (1 - _r2(part, topics[r], target[r]) for r in (rows, validating))
            points.append(CurvePoint(size, runs, *errors))
    return tuple(points)


def _usable(samples: Samples, size: int) -> tuple[Floats, Floats]:
    topics, target = runs_of_size(samples, size)
    # A topic without a message has no latency. Alone and overloaded, latency has a cliff that no polynomial
    # follows; feasibility never asks there.
    good = np.isfinite(target).all(axis=1) & ((size > 1) | (topics[:, :, 2].sum(axis=1) <= 1))
    if good.sum() < LEAST_RUNS:
        what = "of one topic and a load of at most 1" if size == 1 else f"of {size} topics"
        raise InputError(f"only {good.sum()} usable runs {what}; at least {LEAST_RUNS} are needed to learn from")
    return topics[good], target[good]


def _split(runs: int, settings: Training) -> tuple[Ints, Ints]:
    order = np.random.default_rng(settings.seed).permutation(runs)
    held_out = max(2, round(settings.held_out * runs))
    return order[held_out:], order[:held_out]


def _fit(topics: Floats, target: Floats, settings: Training) -> IsolatedModel | LatencyNetwork:
    size = topics.shape[1]
    if size == 1:
        return _fit_isolated(topics[:, 0], target[:, 0])
    background = topics.sum(axis=1, keepdims=True) - topics
    features = np.concatenate([topics, background], axis=2).reshape(-1, 6)
    return _fit_network(
        features, target.ravel(), settings.neurons_from_six if size >= 6 else settings.neurons, settings
    )


def _fit_isolated(own: Floats, target: Floats) -> IsolatedModel:
    low, high = own[:, :2].min(axis=0), own[:, :2].max(axis=0)
    high = np.where(high > low, high, low + 1)  # all topics alike in one of them: nothing to scale
    powers = np.array([(p, r) for p in range(DEGREE + 1) for r in range(DEGREE + 1 - p)])
    empty = IsolatedModel(low, high, powers, np.zeros(len(powers)))
    # A trace of L2 on all but the constant: without it a few dozen runs, or processing times of few values,
    # make a polynomial that fits them and nothing between them.
    penalty = np.sqrt(ISOLATED_L2) * np.eye(len(powers) + len(empty.saturation))[1:]
    terms = np.concatenate([np.hstack([empty.terms(own), empty.saturation_terms(own)]), penalty])
    found = np.linalg.lstsq(terms, np.concatenate([target, np.zeros(len(penalty))]), rcond=None)[0]
    return replace(empty, coefficients=found[: len(powers)], saturation=found[len(powers) :])


def _fit_network(features: Floats, target: Floats, neurons: int, settings: Training) -> LatencyNetwork:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_limits

    centre, spread = features.mean(axis=0), features.std(axis=0)
    spread = np.where(spread > 0, spread, 1)
    learner = MLPRegressor(
        hidden_layer_sizes=(neurons, neurons),
        activation="relu",
        solver="lbfgs",
        alpha=settings.l2,
        max_iter=settings.iterations,
        random_state=settings.seed,
    )
    # Matrices this small are slower on several threads, many times so when the cores are shared.
    with threadpool_limits(1), warnings.catch_warnings():
        # Stopping at the limit of iterations is meant: it overfits less than running to convergence.
        warnings.simplefilter("ignore", ConvergenceWarning)
        learner.fit((features - centre) / spread, target)
    (first, second, last), (bias, *biases) = learner.coefs_, learner.intercepts_
    first = first / spread[:, None]
    layers = (first, second, last, bias - centre @ first, *biases)
    weights = [layer.astype(np.float32) for layer in layers]
    return LatencyNetwork((weights[0], weights[1], weights[2]), (weights[3], weights[4], weights[5]))


def _tail(part: IsolatedModel | LatencyNetwork, topics: Floats, target: Floats, quantile: float) -> Tail:
    """The quantile of the errors among runs of a similar load, made to grow with the load."""
    error = (target - _predicted(part, topics)).ravel()
    load = np.repeat(topics[:, :, 2].sum(axis=1), topics.shape[1])
    margin = np.zeros(len(TAIL_LOADS))
    for knot, centre in enumerate(TAIL_LOADS):
        near = np.argsort(np.abs(load - centre), kind="stable")[: max(LEAST_NEAR, len(load) // 12)]
        margin[knot] = max(0.0, float(np.quantile(error[near], quantile)))
    return Tail(TAIL_LOADS, np.maximum.accumulate(margin))


def _predicted(part: IsolatedModel | LatencyNetwork, topics: Floats) -> Floats:
    """log p90 of every topic of every run."""
    if isinstance(part, IsolatedModel):
        return part.log_latency(topics[:, 0])[:, None]
    background = topics.sum(axis=1, keepdims=True) - topics
    return part.log_latency(topics.reshape(-1, 3), background.reshape(-1, 3)).reshape(topics.shape[:2])


def _r2(part: IsolatedModel | LatencyNetwork, topics: Floats, target: Floats) -> float:
    return _score(target, _predicted(part, topics))


def _score(target: Floats, found: Floats) -> float:
    residual, total = ((target - found) ** 2).sum(), ((target - target.mean()) ** 2).sum()
    return float(1 - residual / total) if total > 0 else float(residual == 0)
