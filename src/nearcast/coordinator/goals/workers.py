"""Worker latency: an overloaded worker's topics are split, idle workers of a site are merged."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import numpy as np

from nearcast.coordinator.goals.goal import Goal, Proposal, TopicProposal
from nearcast.coordinator.model.problems import worker_time_limit
from nearcast.domain.worker_id import WorkerId

if TYPE_CHECKING:
    from nearcast.config.coordinator_settings import CoordinatorSettings
    from nearcast.coordinator.model import Model
    from nearcast.placement.colocation.latency_model import LatencyModel

__all__ = ["WorkerLatencyGoal"]


class WorkerLatencyGoal(Goal):
    """Which topics share a worker: by a trained latency model (co-location paper), or by load without one."""

    name = "worker latency"

    def __init__(self, model: LatencyModel | None = None) -> None:
        self.latency_model = model

    def propose(self, model: Model, settings: CoordinatorSettings) -> list[Proposal]:
        """Site by site: those with a worker over its bound, and those whose workers fit into one."""
        found: list[Proposal] = []
        workers = model.workers
        for site in np.flatnonzero(model.sites.alive).tolist():
            rows = np.flatnonzero(workers.site[workers.worker] == site) if len(workers.worker) else np.empty(0, int)
            if len(rows):
                found += self._site(model, settings, site, rows)
        return found

    def _site(self, model: Model, settings: CoordinatorSettings, site: int, rows: np.ndarray) -> list[Proposal]:
        workers, topics = model.workers, model.topics
        bound = np.where(np.isfinite(topics.bound), topics.bound, settings.default_bound_ms)[workers.topic[rows]]
        allowed = worker_time_limit(model, settings)[workers.topic[rows]]
        here, current = np.unique(workers.worker[rows], return_inverse=True)
        over = set(current[workers.p90_ms[rows] > allowed].tolist())
        over |= set(np.flatnonzero(workers.busy[here] > settings.worker_busy).tolist())
        load = workers.rate[rows] * workers.processing_ms[rows] / 1000
        if over and len(rows) > len(here):
            wanted = self._split(model, settings, rows, bound, load, current, over)
            why = "{worker} is too slow or too busy with {count} topics ({figures})"
        elif not over and len(here) > 1 and (load.sum() < settings.worker_busy / 2):
            if len(rows) > settings.topics_per_worker or (workers.waiting[rows] > 0).any():
                return []
            wanted = np.zeros(len(rows), dtype=np.int64)
            why = "all workers of this site together keep one busy for {busy:.0%} of the time, so one is enough"
        else:
            return []
        return self._proposals(model, site, rows, current, wanted, why, float(load.sum()), hard=bool(over))

    def _split(
        self,
        model: Model,
        settings: CoordinatorSettings,
        rows: np.ndarray,
        bound: np.ndarray,
        load: np.ndarray,
        current: np.ndarray,
        over: set[int],
    ) -> np.ndarray:
        workers = model.workers
        if self.latency_model is not None and (workers.processing_ms[rows] > 0).all() and (load <= 1).all():
            from nearcast.placement.colocation.incremental import adjusted
            from nearcast.placement.colocation.problem import ColocationTopics, InfeasibleTopicError, feasibility

            wanted = ColocationTopics(np.maximum(workers.rate[rows], 1e-3), workers.processing_ms[rows], bound)
            try:
                possible = feasibility(self.latency_model, wanted, 0.1)
                k = min(settings.topics_per_worker, self.latency_model.k)
                return np.asarray(adjusted(possible, k, current).worker)
            except InfeasibleTopicError:
                pass  # a topic is too heavy for any worker: split by load
        # By load: topics of an overloaded worker, heaviest first, move to a worker with room or to a new one.
        found, used = current.copy(), np.bincount(current, load).tolist()
        for worker in over:
            mine = sorted(np.flatnonzero(found == worker).tolist(), key=lambda n: -load[n])
            for n in mine[1:]:  # the heaviest stays
                if used[worker] <= settings.worker_busy and n != mine[1]:
                    break
                room = [w for w in range(len(used)) if w not in over and used[w] + load[n] <= settings.worker_busy
                        and (found == w).sum() < settings.topics_per_worker]  # fmt: skip
                target = min(room, key=lambda w: used[w]) if room else len(used)
                if target == len(used):
                    used.append(0.0)
                used[worker] -= load[n]
                used[target] += load[n]
                found[n] = target
        return found

    def _proposals(
        self,
        model: Model,
        site: int,
        rows: np.ndarray,
        current: np.ndarray,
        wanted: np.ndarray,
        why: str,
        busy: float,
        *,
        hard: bool,
    ) -> list[Proposal]:
        workers, topics = model.workers, model.topics
        here = np.unique(workers.worker[rows])
        names = [workers.names[worker].worker for worker in here]
        unused = (name for n in count() if (name := f"worker-{n}") not in names)
        while len(names) <= int(wanted.max()):
            names.append(next(unused))
        found: list[Proposal] = []
        site_name = model.sites.names[site]
        for n in np.flatnonzero(wanted != current).tolist():
            row = int(workers.topic[rows[n]])
            old = workers.names[workers.worker[rows[n]]]
            members = tuple(
                WorkerId(site_name, names[wanted[n]]) if name == old else name for name in topics.records[row].members
            )
            at = tuple(np.flatnonzero(topics.managing[row]).tolist())
            mine = rows[current == current[n]]
            slowest = workers.p90_ms[mine].max()
            figures = f"p90 up to {slowest:.0f} ms, busy {workers.busy[workers.worker[rows[n]]]:.0%} of the time"
            reason = why.format(worker=old, count=len(mine), busy=busy, figures=figures)
            found.append(TopicProposal(row, members, at, float(topics.latency[row]), reason, hard))
        return found
