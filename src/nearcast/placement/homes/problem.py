"""What a home planner is given: who publishes and subscribes to what, all delays, what sites hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from nearcast.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["HomesProblem", "entries_at", "membership", "pattern"]


def membership(topics: ArrayLike, clients: ArrayLike, shape: tuple[int, int], weights: ArrayLike | None = None) -> Any:
    """A topics × clients CSR matrix from pairs; weights are 1 unless given."""
    topics, clients = np.asarray(topics, dtype=np.int64), np.asarray(clients, dtype=np.int64)
    data = np.ones(len(topics)) if weights is None else np.asarray(weights, dtype=float)
    return sparse.csr_array((data, (topics, clients)), shape=shape)


def entries_at(matrix: Any, rows: Ints, columns: Ints) -> Floats:
    """matrix[row, column] for many pairs. SciPy answers no pairs with a sparse array instead of an array."""
    return np.asarray(matrix[rows, columns], dtype=np.float64) if len(rows) else np.zeros(0)


@dataclass(frozen=True, eq=False)
class HomesProblem:
    """M clients, L sites, N topics. All delays are one way, in milliseconds.

    The paper's symbols: d^H is `client_site_ms`, d^S `site_site_ms`, d^C `cloud_ms`, A_l `storage`,
    B_l `compute`, u_n `spool_size`. An entry of `publications` (topics × clients) makes the client a
    publisher of the topic and is the weight of its publications; an entry of `subscriptions` makes it a
    subscriber and is its weight among the topic's subscribers. The two sets may differ. Weights count in the
    delay only: storage and compute depend on who publishes (Eq. 1).
    """

    client_site_ms: Floats
    site_site_ms: Floats
    cloud_ms: float
    storage: Floats
    compute: Floats
    spool_size: Floats
    publications: Any
    subscriptions: Any

    def __post_init__(self) -> None:
        for name in ("client_site_ms", "site_site_ms", "storage", "compute", "spool_size"):
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), dtype=np.float64))
        for name in ("publications", "subscriptions"):
            matrix = sparse.csr_array(getattr(self, name), dtype=np.float64)
            matrix.sum_duplicates()
            object.__setattr__(self, name, matrix)
        if self.client_site_ms.ndim != 2 or self.client_site_ms.shape[1] == 0:
            raise InputError("client_site_ms must be clients × sites, with at least one site")
        (clients, sites), topics = self.client_site_ms.shape, len(self.spool_size)
        shapes = {
            "site_site_ms": (sites, sites),
            "storage": (sites,),
            "compute": (sites,),
            "spool_size": (topics,),
            "publications": (topics, clients),
            "subscriptions": (topics, clients),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise InputError(f"{name} is {getattr(self, name).shape}; {shape} is needed")
        for name in ("client_site_ms", *shapes):
            values = getattr(self, name)
            values = values.data if sparse.issparse(values) else values
            if not np.isfinite(values).all() or (values < 0).any():
                raise InputError(f"{name} must be finite and not negative")
        if not np.isfinite(self.cloud_ms) or self.cloud_ms < 0:
            raise InputError(f"cloud_ms is {self.cloud_ms}; a finite number of at least 0 is needed")
        if self.site_site_ms.diagonal().any():
            raise InputError("site_site_ms must be 0 on its diagonal: a site is at no distance from itself")

    @property
    def clients(self) -> int:
        return int(self.client_site_ms.shape[0])

    @property
    def sites(self) -> int:
        return int(self.client_site_ms.shape[1])

    @property
    def topics(self) -> int:
        return len(self.spool_size)

    @cached_property
    def delay_weights(self) -> DelayWeights:
        return DelayWeights.of(self)

    @cached_property
    def members(self) -> Any:
        """C_n: topics × clients, 1 where the client publishes or subscribes."""
        return pattern(pattern(self.publications) + pattern(self.subscriptions))


@dataclass(frozen=True, eq=False)
class DelayWeights:
    """The weights of Eq. 6 once the sums over publications and subscribers are pulled apart.

    A publication (n, m) of weight p reaches the *other* subscribers of n, of total weight S. With q = p / S,

        total delay = Σ_m distance_m · d^H[m, home m]  +  Σ_l 2 d^C (1 - θ_l) P_l  +  Σ_l θ_l X_l
        P_l = Σ p over publications at l        X_l = Σ q · s · d^S[l, l'] over its subscribers, at l'

    The publisher itself drops out of X_l because a site is at no distance from itself. A publication without
    another subscriber has no delivery, hence no delay: its p and q are 0.
    """

    publishing: Any  # p, topics × clients
    sending: Any  # q, topics × clients
    receiving: Any  # s, topics × clients
    distance: Floats  # what a millisecond to its home costs, per client
    total: float  # I: the weight of all publications that reach a subscriber

    @classmethod
    def of(cls, problem: HomesProblem) -> DelayWeights:
        publications, subscriptions = problem.publications, problem.subscriptions
        topic_of = np.repeat(np.arange(problem.topics), np.diff(publications.indptr))
        own = entries_at(subscriptions, topic_of, publications.indices)
        audience = np.asarray(subscriptions.sum(axis=1)).ravel()[topic_of] - own
        # Below this share, what is left is the rounding of the subtraction, not a subscriber.
        heard = audience > 1e-12 * (audience + own)
        p = np.where(heard, publications.data, 0.0)
        q = np.divide(p, audience, out=np.zeros_like(p), where=heard)
        structure = (publications.indices, publications.indptr)
        publishing = sparse.csr_array((p, *structure), shape=publications.shape)
        sending = sparse.csr_array((q, *structure), shape=publications.shape)
        sent = np.asarray(sending.sum(axis=1)).ravel()
        received = subscriptions.T @ sent - np.asarray(sending.multiply(subscriptions).sum(axis=0)).ravel()
        distance = np.asarray(publishing.sum(axis=0)).ravel() + np.maximum(received, 0.0)
        return cls(publishing, sending, subscriptions, distance, float(p.sum()))


def pattern(matrix: Any) -> Any:
    """1 where the matrix has an entry."""
    return sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
