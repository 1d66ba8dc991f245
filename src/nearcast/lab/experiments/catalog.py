"""All experiments by name. Names and summaries only: an experiment's module is imported when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nearcast.lab.experiments.experiment import Experiment

__all__ = ["CATALOG", "Listed", "load", "load_all"]


class Listed(NamedTuple):
    """`module` of this package has the experiment in its `EXPERIMENTS`."""

    module: str
    summary: str


# In the order of the page: by paper, then by figure.
CATALOG: dict[str, Listed] = {
    "stores-popularity": Listed("stores_planning", "003, Fig. 7: hops against the popularity exponent, stores given."),
}


def load(name: str) -> Experiment:
    """The experiment of a listed name."""
    module = import_module(f"nearcast.lab.experiments.{CATALOG[name].module}")
    found: dict[str, Experiment] = {experiment.name: experiment for experiment in module.EXPERIMENTS}
    return found[name]


def load_all() -> list[Experiment]:
    return [load(name) for name in CATALOG]
