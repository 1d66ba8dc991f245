"""A generated city after Section 7 of the RELOC paper: the problem itself, to test and measure home planners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial.distance import cdist

from nearcast.placement.homes.problem import HomesProblem, membership

if TYPE_CHECKING:
    from nearcast.placement.arrays import Floats

__all__ = ["PAPER", "CityParameters", "city", "random_members"]


@dataclass(frozen=True)
class CityParameters:
    """Table 2 of the paper: L `sites`, σ `spread_km`, p `spool_per_member`, A `storage`, B `compute`."""

    sites: int = 16
    field_km: float = 25.0
    spread_km: float = 5.0
    spool_per_member: float = 2.0
    storage: float = 640.0
    compute: float = 3200.0
    cloud_ms: float = 5.0
    ms_per_km: float = 0.1


PAPER = CityParameters()


def random_members(topics: int, clients: int, seed: int, sizes: tuple[int, int] = (4, 21)) -> Any:
    """Topics × clients: sizes uniform from the least to the most, no client in more than four topics.

    The paper takes them from a follow graph that is not public any more; its limits (21 members, 4 topics)
    are what is left of it. Clients that end up in no topic are left out.
    """
    rng = np.random.default_rng(seed)
    topic = np.repeat(np.arange(topics), rng.integers(sizes[0], sizes[1] + 1, size=topics))
    # Everybody is in one topic before anybody is in a second one; drawn twice for a topic counts once.
    client = np.concatenate([rng.permutation(clients) for _ in range(4)])[: len(topic)]
    pairs = np.unique(np.stack([rng.permutation(topic)[: len(client)], client]), axis=1)
    matrix = membership(pairs[0], pairs[1], (topics, clients))
    return matrix[:, np.flatnonzero(np.diff(matrix.tocsc().indptr))]


def city(members: Any, parameters: CityParameters = PAPER, seed: int = 0) -> HomesProblem:
    """Everybody publishes and subscribes to the topics of `members` (topics × clients, CSR).

    The members of a topic lie around its point with a Gaussian of σ, drawn again until they are in the field;
    who is in several topics lives where the first one is. Sites stand on a grid.
    """
    rng = np.random.default_rng(seed)
    topics, clients = members.shape
    centres = rng.uniform(0, parameters.field_km, size=(topics, 2))
    by_client = members.tocsc()
    by_client.sort_indices()
    lives_at = centres[by_client.indices[by_client.indptr[:-1]]]
    position = np.full((clients, 2), np.inf)
    while (outside := ((position < 0) | (position > parameters.field_km)).any(axis=1)).any():
        position[outside] = rng.normal(lives_at[outside], parameters.spread_km)
    sites = _grid(parameters.sites, parameters.field_km)
    return HomesProblem(
        client_site_ms=parameters.ms_per_km * cdist(position, sites),
        site_site_ms=parameters.ms_per_km * cdist(sites, sites),
        cloud_ms=parameters.cloud_ms,
        storage=np.full(parameters.sites, parameters.storage),
        compute=np.full(parameters.sites, parameters.compute),
        spool_size=parameters.spool_per_member * np.diff(members.indptr),
        publications=members,
        subscriptions=members,
    )


def _grid(sites: int, field_km: float) -> Floats:
    """A last row that is not full keeps the columns of the others; `follow.site_grid` spreads it evenly."""
    columns = int(np.ceil(np.sqrt(sites)))
    rows = -(-sites // columns)
    number = np.arange(sites)
    return np.stack([(number % columns + 0.5) / columns, (number // columns + 0.5) / rows], axis=1) * field_km
