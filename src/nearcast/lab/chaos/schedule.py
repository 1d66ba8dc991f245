"""Which faults come, in which order, where and for how long: data made from a seed, and nothing else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nearcast.lab.chaos.deployment import CLOUD, COORDINATORS, DRIVER, SITES, SMALL_DISK, STORES, devices_node

__all__ = ["KINDS", "PHASES", "QUICK_PHASES", "ChaosPlan", "Fault", "Phases", "make_schedule"]


@dataclass(frozen=True)
class Fault:
    """Something that breaks for a while.

    target: what breaks: a node, or two of them for a link. touches: nodes whose flows may stop while it lasts; all
    others must continue. stores: those that may not answer.
    """

    kind: str
    target: tuple[str, ...]
    seconds: float
    touches: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


@dataclass(frozen=True)
class Phases:
    """Lengths in seconds. drain: how long at most to wait, at the end, for what is still owed."""

    warm_up: float = 15.0
    steady: float = 10.0
    shortest_fault: float = 14.0
    longest_fault: float = 24.0
    recovery: float = 18.0
    drain: float = 60.0

    def faults_within(self, seconds: float) -> int:
        """How many faults make a run at least this long, however short each of them is."""
        each = self.shortest_fault + self.recovery
        return max(1, math.ceil((seconds - self.warm_up - self.steady) / each))


@dataclass(frozen=True)
class ChaosPlan:
    """What a run does, all of it known before it begins."""

    seed: int
    faults: tuple[Fault, ...]
    phases: Phases
    cluster: bool = False

    @property
    def seconds(self) -> float:
        """How long publishers publish."""
        p = self.phases
        return p.warm_up + p.steady + sum(fault.seconds + p.recovery for fault in self.faults)


PHASES = Phases()
QUICK_PHASES = Phases(12.0, 6.0, 12.0, 16.0, 14.0, 40.0)

Maker = Callable[[np.random.Generator, float], Fault]


def _at_site(kind: str, sites: Sequence[str], *, touches: bool = True, store: bool = True) -> Maker:
    def make(rng: np.random.Generator, seconds: float) -> Fault:
        site = str(rng.choice(list(sites)))
        return Fault(kind, (site,), seconds, (site,) if touches else (), (site,) if store and site in STORES else ())

    return make


def _between(kind: str, pairs: Sequence[tuple[str, str]]) -> Maker:
    def make(rng: np.random.Generator, seconds: float) -> Fault:
        pair = pairs[int(rng.integers(len(pairs)))]
        if rng.random() < 0.5:
            pair = pair[::-1]
        return Fault(kind, pair, seconds, pair, tuple(node for node in pair if node in STORES))

    return make


def _everything(kind: str) -> Maker:
    return lambda rng, seconds: Fault(kind, SITES, seconds, SITES, STORES)


_PAIRS = tuple(itertools.combinations(SITES, 2))
_MANAGING = ("north", "east", "south", "west")
_DEVICES = tuple(devices_node(site) for site in ("north", "east", "south"))
_ACCESS = tuple(zip(_DEVICES, ("north", "east", "south"), strict=True))

KINDS: dict[str, Maker] = {
    "kill worker": _at_site("kill worker", _MANAGING, store=False),
    "kill processor": _at_site("kill processor", _MANAGING, store=False),
    "kill agent": _at_site("kill agent", SITES),
    "kill broker": _at_site("kill broker", SITES),
    "kill store": _at_site("kill store", STORES, touches=False),
    "kill coordinator": _at_site("kill coordinator", COORDINATORS, touches=False, store=False),
    "kill site": _at_site("kill site", SITES),
    "stop worker": _at_site("stop worker", _MANAGING, store=False),
    "stop processor": _at_site("stop processor", _MANAGING, store=False),
    "stop agent": _at_site("stop agent", SITES),
    "stop broker": _at_site("stop broker", SITES),
    "stop store": _at_site("stop store", STORES, touches=False),
    "stop coordinator": _at_site("stop coordinator", COORDINATORS, touches=False, store=False),
    "stop site": _at_site("stop site", SITES),
    "cut site": _at_site("cut site", SITES),
    "cut link": _between("cut link", _PAIRS),
    "cut one way": _between("cut one way", _PAIRS),
    "cut devices": _between("cut devices", _ACCESS),
    "kill devices": _at_site("kill devices", _DEVICES[1:], store=False),
    "delay": _between("delay", _PAIRS),
    "loss": _at_site("loss", SITES),
    "full disk": _at_site("full disk", (SMALL_DISK,), touches=False),
    "false clock": lambda rng, seconds: Fault("false clock", ("slow" if rng.random() < 0.5 else "fast",), seconds),
    "restart everything": _everything("restart everything"),
    "kill everything": _everything("kill everything"),
}
CLUSTER_KINDS: dict[str, Maker] = {
    kind: lambda rng, seconds, kind=kind: Fault(kind, (CLOUD,), seconds, (DRIVER,))  # type: ignore[misc]
    for kind in ("kill driver", "stop driver")
}


def make_schedule(seed: int, count: int, phases: Phases, *, cluster: bool = False) -> list[Fault]:
    """`count` faults; no kind comes again before all have come."""
    rng = np.random.default_rng(seed)
    makers = KINDS | (CLUSTER_KINDS if cluster else {})
    faults: list[Fault] = []
    while len(faults) < count:
        for kind in rng.permutation(sorted(makers)):
            seconds = round(float(rng.uniform(phases.shortest_fault, phases.longest_fault)), 1)
            faults.append(makers[str(kind)](rng, seconds))
    return faults[:count]
