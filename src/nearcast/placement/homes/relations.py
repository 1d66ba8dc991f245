"""The relation matrix of clients that share topics, factorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nearcast.placement.arrays import Floats, Ints

__all__ = ["Relations", "block_relations", "factors", "relation_blocks", "relation_matrix", "strongest_relations"]

# Rows of the relation matrix are made in blocks of about this many entries: it never is in memory whole.
BLOCK_ENTRIES = 2_000_000


@dataclass(frozen=True, eq=False)
class Relations:
    """For client m, the clients of `clients[start[m]:start[m + 1]]`, strongest relation first."""

    start: Ints
    clients: Ints


def relation_matrix(members: Any, rows: slice = slice(None)) -> Any:
    """Z, sparse: z_mm' topics have both m and m' among their members. Only the wanted rows."""
    return (members[:, rows].T @ members).tocsr()


def factors(members: Any, rank: int, seed: int) -> Floats:
    """Line 19: clients × rank, such that factors @ factors.T is Z at that rank.

    Z is Bᵀ B for the membership matrix B, so the truncated SVD of B = U S Vᵀ gives that of Z, V S² Vᵀ, and
    Z need not be held for it.
    """
    from sklearn.utils.extmath import randomized_svd

    rank = min(rank, *members.shape)
    _, singular, right = randomized_svd(members, rank, random_state=seed)
    return np.ascontiguousarray(right.T * singular)


def strongest_relations(members: Any, count: int, rank: int, topic_limit: int, seed: int) -> Relations:
    """Line 22 for all clients: the `count` (M') strongest by the factorised Z among those that share a topic.

    Equally strong ones are in the order of their numbers.
    """
    sizes = np.diff(members.indptr)
    members = members[sizes <= topic_limit]
    if not members.nnz:
        return Relations(np.zeros(members.shape[1] + 1, dtype=np.int64), np.zeros(0, dtype=np.int64))
    strength = factors(members, rank, seed)
    found, kept = zip(
        *(block_relations(members, strength, rows, count) for rows in relation_blocks(members)), strict=True
    )
    start = np.concatenate([[0], np.cumsum(np.concatenate(kept))])
    return Relations(start, np.concatenate(found).astype(np.int64))


def block_relations(members: Any, strength: Floats, rows: slice, count: int) -> tuple[Ints, Ints]:
    """The strongest relations of the clients in `rows`, one client after the other, and how many each has."""
    block = relation_matrix(members, rows)
    block.sort_indices()
    client = np.repeat(np.arange(rows.start, rows.stop), np.diff(block.indptr))
    other = block.indices
    client, other = client[client != other], other[client != other]
    score = np.zeros(len(client))
    for column in strength.T:
        score += column[client] * column[other]
    order = np.lexsort((-score, client))  # stable: equals stay in the order of their numbers
    client, other = client[order], other[order]
    per_client = np.bincount(client - rows.start, minlength=rows.stop - rows.start)
    place = np.arange(len(client)) - np.repeat(np.cumsum(per_client) - per_client, per_client)
    return other[place < count], np.minimum(per_client, count)


def relation_blocks(members: Any) -> Iterator[slice]:
    """Ranges of clients whose rows of Z have about BLOCK_ENTRIES entries together."""
    sizes = np.diff(members.indptr)
    entries = np.cumsum(sparse.csr_array(members.T) @ sizes)
    first = 0
    while first < len(entries):
        done = entries[first - 1] if first else 0
        last = max(int(np.searchsorted(entries, done + BLOCK_ENTRIES, side="right")), first + 1)
        yield slice(first, last)
        first = last
