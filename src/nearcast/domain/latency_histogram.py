"""Latencies counted in buckets that grow by a fixed factor: small, mergeable by adding, good for percentiles."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["BUCKETS", "bucket", "cumulative", "empty", "percentile", "total_ms"]

BUCKETS = 320
_PER_DOUBLING = 16  # each bucket is 4 % wider than the one before: bounds are compared with the percentiles
_SMALLEST_MS = 1 / 16  # up to 65 s


def empty() -> list[int]:
    """A histogram of nothing."""
    return [0] * BUCKETS


def bucket(milliseconds: float) -> int:
    """Where a latency is counted."""
    if milliseconds <= _SMALLEST_MS:
        return 0
    return min(math.ceil(_PER_DOUBLING * math.log2(milliseconds / _SMALLEST_MS)), BUCKETS - 1)


def percentile(counts: Sequence[int], share: float) -> float:
    """The middle, in milliseconds, of the bucket in which a share of all is reached; 0 of nothing."""
    so_far = list(accumulate(counts))
    return _middle_ms(bisect_left(so_far, share * so_far[-1])) if any(counts) else 0.0


def cumulative(counts: Sequence[int], bounds_ms: Sequence[float]) -> list[int]:
    """How many are at most each of these bounds; a bucket counts for a bound that its upper end does not exceed."""
    ends = [math.floor(_PER_DOUBLING * math.log2(bound / _SMALLEST_MS)) + 1 for bound in bounds_ms]
    return [sum(counts[: max(0, end)]) for end in ends]


def total_ms(counts: Sequence[int]) -> float:
    """The sum of all latencies, each taken for the middle of its bucket."""
    return sum(count * _middle_ms(n) for n, count in enumerate(counts) if count)


def _middle_ms(n: int) -> float:
    return float(_SMALLEST_MS * 2 ** ((n - 0.5) / _PER_DOUBLING))
