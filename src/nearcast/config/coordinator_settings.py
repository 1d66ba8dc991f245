"""The coordinator's settings, each with its default and why."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["CoordinatorSettings"]


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times are seconds; thresholds are those of the papers where they give any."""

    period: float = 5.0  # between two passes of the loop, and between reports (ePulsar, Section 4)
    lease: float = 6.0  # another coordinator leads at most two of these after the leader died
    site_lost_after: float = 20.0  # four missed reports, of a site or its store: a short cut must not move everything
    client_lost_after: float = 30.0  # a client whose site says it is gone, and that does not come back
    homes: Literal["nearest", "round_robin", "random", "reloc"] = "nearest"  # the home of a client that registers
    automatic: bool = True  # carry plans out; otherwise they wait for `nearcast plan apply`
    moves_at_once: int = 16  # ePulsar's migration executors
    start_limit: float = 20.0  # a target that has not started a topic by then is rolled back
    leave_limit: float = 5.0  # an old member that does not answer will leave by itself
    rehome_limit: float = 15.0
    copy_limit: float = 300.0  # a new store that has not copied a topic's past by then is given up
    cool_down: float = 60.0  # nothing moves back within this time, unless a hard goal demands it
    watermark: float = 0.85  # of CPU, memory and network (ePulsar, Section 3.4.2)
    rate_out_limit: float = 1_500_000.0  # R_out: messages per second at a broker (ePulsar, Section 5.4); profile yours
    cov: float = 0.25  # α: above it homes are balanced, one move at a time
    mean_load: float = 100.0  # β: messages per second and site below which balance does not matter
    shuffle_cov: float = 0.8  # γ: above it all homes are dealt anew
    shuffle_mean_load: float = 1_000.0  # θ
    topics_per_worker: int = 6  # k of the co-location paper, whose models go up to 6
    worker_busy: float = 0.75  # a worker busier than this is split even without a latency model
    default_bound_ms: float = 1_000.0  # p90 for processed topics without a bound (co-location, Section V)
    gain: float = 0.1  # a soft goal's plan must improve its figure by this share to be worth its moves
    client_moves: int = 200  # of one pass; the next pass sees what they did
    seed: int = 1
