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
    "reloc-steps": Listed("reloc", "000, Fig. 10 and 11: the steps of RELOC, one topic."),
    "reloc-topics": Listed("reloc", "000, Fig. 13: members per topic."),
    "reloc-sigma": Listed("reloc", "000, Fig. 14: homes against locality σ."),
    "reloc-spool": Listed("reloc", "000, Fig. 15: homes against the size of spools."),
    "reloc-clusters": Listed("reloc", "000, Fig. 16: homes against the number of clusters K."),
    "colocation-sensitivity": Listed("colocation_model", "001, Fig. 1: p90 of a topic against its rate, simulated."),
    "colocation-real-worker": Listed("colocation_real", "001, Fig. 1 on a real worker."),
    "colocation-accuracy": Listed("colocation_model", "001, Fig. 2 and Table I: accuracy of the latency model."),
    "colocation-real-accuracy": Listed("colocation_real", "001, Table I: the model beside real workers."),
    "colocation-topics": Listed("colocation_plans", "001, Fig. 3: workers, time and what is late against topics."),
    "colocation-seed-size": Listed("colocation_plans", "001, Fig. 4: the same against k'."),
    "coordinate-error": Listed("coordinates_and_reports", "002, Fig. 3: error of network coordinates."),
    "selection-game": Listed("broker_selection", "002, Fig. 4: worst latency and late pairs of the game."),
    "selection-swarms": Listed("broker_selection", "002, Fig. 5: worst latency and late pairs of the swarms."),
    "monitoring-bytes": Listed("coordinates_and_reports", "002, Fig. 6: bytes of monitoring against clients."),
    "migration": Listed("topic_migration", "002, Fig. 7: downtime and time per topic of migrations."),
    "stores-brokers": Listed("stores_planning", "003, Fig. 4: hops against the number of brokers."),
    "stores-capacity": Listed("stores_planning", "003, Fig. 5: hops against the capacity of stores."),
    "stores-replicas": Listed("stores_planning", "003, Fig. 6: hops against the minimum of replicas."),
    "stores-popularity": Listed("stores_planning", "003, Fig. 7: hops against the popularity exponent, stores given."),
    "stores-locality": Listed("stores_planning", "003, Fig. 8: hops against the locality exponent, stores given."),
    "stores-failures": Listed("stores_failures", "003, Fig. 9: hops against failed stores."),
    "stores-reassign-popularity": Listed("stores_changes", "003, Fig. 10: reassignment after popularity changed."),
    "stores-reassign-locality": Listed("stores_changes", "003, Fig. 11: reassignment after locality changed."),
    "balance-testbed": Listed("balance_testbed", "004, Fig. 5 to 12: brokers' loads on a live testbed."),
    "balance-over-time": Listed("balance_over_time", "004, Fig. 13: half an hour of rates that rise and fall."),
    "balance-thresholds": Listed("balance_over_time", "004, Fig. 14: what α and β do."),
}


def load(name: str) -> Experiment:
    """The experiment of a listed name."""
    module = import_module(f"nearcast.lab.experiments.{CATALOG[name].module}")
    found: dict[str, Experiment] = {experiment.name: experiment for experiment in module.EXPERIMENTS}
    return found[name]


def load_all() -> list[Experiment]:
    return [load(name) for name in CATALOG]
