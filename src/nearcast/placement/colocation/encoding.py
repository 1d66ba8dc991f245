"""A latency model as files and back: a JSON description and an NPZ archive of numbers, no code in either."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from nearcast.errors import InputError
from nearcast.placement.colocation.latency_model import IsolatedModel, LatencyModel, LatencyNetwork, Tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearcast.placement.colocation.training import Accuracy

__all__ = ["DESCRIPTION", "VERSION", "WEIGHTS", "decode", "encode"]

FORMAT = "nearcast-latency-model"
VERSION = 2  # raise it when an older Nearcast would misread a model
DESCRIPTION, WEIGHTS = "model.json", "weights.npz"


def encode(model: LatencyModel, report: Sequence[Accuracy]) -> dict[str, bytes]:
    """The model's files: name -> content."""
    description = {"format": FORMAT, "version": VERSION, "k": model.k, "accuracy": [asdict(line) for line in report]}
    arrays = {f"isolated_{name}": value for name, value in vars(model.isolated).items()}
    for topics, network in enumerate(model.networks, start=2):
        for layer in range(3):
            arrays[f"weights_{topics}_{layer}"] = network.weights[layer]
            arrays[f"biases_{topics}_{layer}"] = network.biases[layer]
    for topics, tail in enumerate(model.tails, start=1):
        arrays[f"tail_{topics}"] = np.stack([tail.load, tail.margin])
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, **arrays)
    return {DESCRIPTION: json.dumps(description, indent=1).encode(), WEIGHTS: archive.getvalue()}


def decode(files: Mapping[str, bytes]) -> LatencyModel:
    """The model in these files; refuses another format, another version, or a damaged archive."""
    try:
        description = json.loads(files[DESCRIPTION])
        form, version = description["format"], description["version"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{DESCRIPTION} does not describe a latency model") from None
    if form != FORMAT:
        raise InputError(f"{DESCRIPTION} describes {form!r}; {FORMAT!r} is needed")
    if version != VERSION:
        raise InputError(f"the model has version {version}, this Nearcast reads version {VERSION}; train it again")
    try:
        with np.load(io.BytesIO(files[WEIGHTS]), allow_pickle=False) as arrays:
            isolated = IsolatedModel(
                *(arrays[f"isolated_{name}"] for name in ("low", "high", "powers", "coefficients", "saturation"))
            )
            networks = tuple(_network(arrays, topics) for topics in range(2, description["k"] + 1))
            learned = [arrays[f"tail_{topics}"] for topics in range(1, description["k"] + 1) if "tail_1" in arrays]
            tails = tuple(Tail(load, margin) for load, margin in learned)
    except (KeyError, TypeError, ValueError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{WEIGHTS} is damaged or does not belong to {DESCRIPTION}; train the model again") from None
    return LatencyModel(isolated, networks, tails)


def _network(arrays: Mapping[str, np.ndarray], topics: int) -> LatencyNetwork:
    weights = [arrays[f"weights_{topics}_{layer}"] for layer in range(3)]
    biases = [arrays[f"biases_{topics}_{layer}"] for layer in range(3)]
    return LatencyNetwork((weights[0], weights[1], weights[2]), (biases[0], biases[1], biases[2]))
