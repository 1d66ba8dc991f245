"""The coordinator's settings, each with its default and the reason for it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["CoordinatorSettings"]

_Positive = Annotated[float, Meta(gt=0)]
_NotNegative = Annotated[float, Meta(ge=0)]
_Share = Annotated[float, Meta(gt=0, le=1)]
_Count = Annotated[int, Meta(ge=1)]


class CoordinatorSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times are seconds; thresholds are those of the papers where they give any."""

    period: _Positive = 5.0  # between two passes of the loop, and between reports (ePulsar, Section 4)
    lease: _Positive = 6.0  # another coordinator leads at most two of these after the leader died
    site_lost_after: _Positive = 20.0  # four missed reports, of a site or its store: a short outage must not move all
    client_lost_after: _Positive = 30.0  # a client that left its home and did not come back is forgotten
    homes: Literal["nearest", "round_robin", "random", "reloc"] = "nearest"  # of a client that registers
    distances: Literal["measured", "coordinates"] = "measured"  # "coordinates": ePulsar's policy, to compare with
    react: _Positive = 0.25  # at least this long between passes, when a client moved or a topic is late
    automatic: bool = True  # execute plans; otherwise they wait for `nearcast plan apply`
    plan_valid: _Positive = 300.0  # how long a plan that was shown can be executed by its id
    moves_at_once: _Count = 16  # ePulsar's migration executors
    start_limit: _Positive = 20.0  # a target that has not started a topic by then is rolled back
    leave_limit: _Positive = 5.0  # a leaving member that does not answer stops when it sees the new epoch
    rehome_limit: _Positive = 15.0  # a client that has not come to its new home by then stays
    copy_limit: _Positive = 300.0  # a new store that has not copied a topic by then is given up
    cool_down: _NotNegative = 60.0  # soft goals do not move the same thing again within this time
    watermark: _Share = 0.85  # of CPU, memory and network (ePulsar, Section 3.4.2)
    rate_out_limit: _Positive = 1_500_000.0  # R_out: messages/s at a broker (ePulsar, Section 5.4); profile yours
    cov: _NotNegative = 0.25  # α: above it homes are balanced, one move at a time
    mean_load: _NotNegative = 100.0  # β: messages per second and site below which balance does not matter
    shuffle_cov: _NotNegative = 0.8  # γ: above it all homes are reassigned
    shuffle_mean_load: _NotNegative = 1_000.0  # θ
    topics_per_worker: _Count = 6  # k of the co-location paper, whose models go up to 6
    worker_busy: _Share = 0.75  # a worker busier than this is split even without a latency model
    default_bound_ms: _Positive = 1_000.0  # p90 for processed topics without a bound (co-location, Section V)
    gain: _NotNegative = 0.1  # a soft goal must improve its figure by this share
    client_moves: Annotated[int, Meta(ge=0)] = 200  # per goal and pass
    seed: int = 1  # of random homes and of the plan of `reloc`
