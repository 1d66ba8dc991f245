"""The model learns the simulated worker, survives being saved, and says what it cannot read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from nearcast import InputError
from nearcast.placement.colocation.encoding import DESCRIPTION, WEIGHTS, decode, encode
from nearcast.placement.colocation.training import (
    Accuracy,
    Training,
    learning_curve,
    runs_of_size,
    train,
    validate,
)
from nearcast.placement.colocation.worker_simulation import Samples, SimulatedWorker, simulate

if TYPE_CHECKING:
    from nearcast.placement.colocation.latency_model import LatencyModel

QUICK = Training(iterations=60)


@pytest.fixture(scope="module")
def samples() -> Samples:
    return simulate(300, 3, SimulatedWorker(), seed=1)


@pytest.fixture(scope="module")
def trained(samples: Samples) -> tuple[LatencyModel, tuple[Accuracy, ...]]:
    return train(samples, QUICK)


def test_it_predicts_runs_it_has_not_seen(trained: tuple[LatencyModel, tuple[Accuracy, ...]]) -> None:
    model, report = trained
    assert [line.topics for line in report] == [1, 2, 3]
    for line in validate(model, simulate(120, 3, SimulatedWorker(), seed=2)):
        assert line.learned > 0.9
        assert line.monotone > line.learned - 0.02


def test_the_network_is_the_one_scikit_learn_trained(samples: Samples) -> None:
    """The forward pass in NumPy, with the scaling folded into the weights, on the paper's six features."""
    from sklearn.neural_network import MLPRegressor

    pairs = runs_of_size(samples, 2)[0]
    _, run = np.unique(samples.run, return_inverse=True)
    small = Samples(*(column[np.bincount(run)[run] <= 2] for column in vars(samples).values()))
    model, _ = train(small, Training(iterations=10))
    order = np.random.default_rng(0).permutation(len(pairs))[round(0.05 * len(pairs)) :]
    features = np.concatenate([pairs, pairs[:, ::-1]], axis=2)  # the background of a pair is the other one
    learned, target = features[order].reshape(-1, 6), runs_of_size(samples, 2)[1][order].ravel()
    centre, spread = learned.mean(axis=0), learned.std(axis=0)
    learner = MLPRegressor(hidden_layer_sizes=(40, 40), solver="lbfgs", alpha=0.1, max_iter=10, random_state=0)
    with pytest.warns(UserWarning, match="failed to converge"):
        learner.fit((learned - centre) / spread, target)
    found = model.networks[0].log_latency(learned[:, :3], learned[:, 3:])
    np.testing.assert_allclose(found, learner.predict((learned - centre) / spread), atol=1e-3)


def test_the_isolated_model_is_a_polynomial_of_degree_4(
    samples: Samples, trained: tuple[LatencyModel, tuple[Accuracy, ...]]
) -> None:
    isolated = trained[0].isolated
    assert len(isolated.powers) == 15
    assert isolated.powers.sum(axis=1).max() == 4
    scaled = (runs_of_size(samples, 1)[0][:, 0, :2] - isolated.low) / (isolated.high - isolated.low)
    inside = ((scaled >= 0) & (scaled <= 1)).all(axis=1)
    terms = zip(isolated.powers, isolated.coefficients, strict=True)
    expected = sum(c * scaled[:, 0] ** p * scaled[:, 1] ** r for (p, r), c in terms)
    load = np.minimum(runs_of_size(samples, 1)[0][:, 0, 2], 1)
    expected += sum(c * load**power for c, power in zip(isolated.saturation, (8, 16, 32, 64), strict=True))
    found = isolated.log_latency(runs_of_size(samples, 1)[0][:, 0])
    np.testing.assert_allclose(found[inside], np.asarray(expected)[inside])


def test_nearly_all_runs_stay_below_the_tail(trained: tuple[LatencyModel, tuple[Accuracy, ...]]) -> None:
    """A mean is exceeded by every second run; near saturation that is what made topics late."""
    model = trained[0]
    for size, tail in enumerate(model.tails, start=1):
        assert (np.diff(tail.margin) >= 0).all()
        assert tail.margin[-1] > tail.margin[0] >= 0
        topics, target = runs_of_size(simulate(600, 3, SimulatedWorker(load=(0.5, 0.98)), seed=7), size)
        below = (target <= model.log_latency_of_sets(topics)).mean()
        assert below > 0.85  # few runs to learn from
        assert below > (target <= model.mean().log_latency_of_sets(topics)).mean() + 0.2


def test_learning_curves_converge(samples: Samples) -> None:
    points = learning_curve(samples, QUICK, shares=(0.1, 1.0))
    assert [(p.topics, p.runs) for p in points][2:4] == [(2, 8), (2, 80)]
    for few, all_runs in zip(points[::2], points[1::2], strict=True):
        gap_before = few.validation_error - few.training_error
        assert all_runs.validation_error - all_runs.training_error < gap_before


def test_a_saved_model_predicts_the_same(trained: tuple[LatencyModel, tuple[Accuracy, ...]]) -> None:
    model, report = trained
    again = decode(encode(model, report))
    topics = runs_of_size(simulate(30, 3, SimulatedWorker(), seed=3), 3)[0]
    np.testing.assert_array_equal(model.predict_ms(topics), again.predict_ms(topics))


def test_another_version_is_refused(trained: tuple[LatencyModel, tuple[Accuracy, ...]]) -> None:
    files = encode(*trained)
    description = json.loads(files[DESCRIPTION])
    newer = {**files, DESCRIPTION: json.dumps({**description, "version": 3}).encode()}
    with pytest.raises(InputError, match="has version 3, this Nearcast reads version 2; train it again"):
        decode(newer)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (DESCRIPTION, b"[]", "does not describe a latency model"),
        (DESCRIPTION, b'{"format": "x", "version": 1}', "describes 'x'"),
        (WEIGHTS, b"PK", "is damaged"),
        (WEIGHTS, b"", "is damaged"),
    ],
)
def test_damaged_files_are_refused(
    trained: tuple[LatencyModel, tuple[Accuracy, ...]], name: str, content: bytes, reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        decode({**encode(*trained), name: content})


def test_too_few_runs_are_refused() -> None:
    runs = simulate(30, 2, SimulatedWorker(seconds=10), seed=1)
    keep = (np.bincount(runs.run)[runs.run] == 1) | (runs.run < 10)
    few = Samples(*(column[keep] for column in vars(runs).values()))
    with pytest.raises(InputError, match="only 5 usable runs of 2 topics; at least 10 are needed"):
        train(few, QUICK)
