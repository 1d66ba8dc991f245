"""A channel with a period: executed at every multiple of it, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nearcast.cluster.channels.failing_channels import NewRecords
from nearcast.cluster.channels.results import ResultLog, group_results
from nearcast.cluster.driver_progress import StageTimer
from nearcast.cluster.spark_errors import error_line
from nearcast.errors import NearcastError

if TYPE_CHECKING:
    from nearcast.cluster.channels.matching import Matcher
    from nearcast.cluster.channels.running_channel import RunningChannel
    from nearcast.cluster.datasets.views import DatasetViews
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.cluster.driver_progress import DriverProgress

__all__ = ["ScheduledChannel"]

_log = logging.getLogger(__name__)


class ScheduledChannel:
    """Executions are numbered by the periods since 1970. require_lease: raises when another driver may have begun."""

    def __init__(
        self,
        channel: RunningChannel,
        views: DatasetViews,
        matcher: Matcher,
        results: ResultLog,
        warehouse: Warehouse,
        progress: DriverProgress,
        failed: Callable[[str, str], None],
        require_lease: Callable[[], None],
    ) -> None:
        self.channel, self._views, self._matcher = channel, views, matcher
        self.results, self._warehouse, self._progress, self._failed = results, warehouse, progress, failed
        self._require_lease = require_lease
        state = warehouse.load_state(results.folder)
        self._execution = int(state.get("execution", 0))
        self._position = state.get("position")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"channel {channel.name}", daemon=True)

    def start(self) -> None:
        """Begin with the next multiple of the period. A channel that was started stays as it is."""
        if self._thread.ident is not None:
            return
        new = self.channel.validated.spec.new
        if self._position is None and new:
            # Records from before the channel was added are not new to it.
            self._position = self._views.position(new)
            self._save()
        self._thread.start()

    def stop(self) -> None:
        """Finish the current execution and end."""
        self._stop.set()
        self._thread.join(60)

    def execute(self, number: int) -> int:
        """One execution; returns how many results were published."""
        timer = StageTimer()
        spec = self.channel.validated.spec
        high = self._views.position(spec.new) if spec.new else 0
        stored = self.results.stored(number)
        rows, new = 0, None
        if stored is None:
            view_of = {name: self._views.whole(name) for name in self.channel.validated.datasets if name != spec.new}
            if spec.new:
                table: Any = self._views.tables[spec.new]
                frame = table.between(int(self._position or 0), high)
                view_of[spec.new] = self._views.part(spec.new, f"channel_{self.channel.number}", frame)
                rows = high - int(self._position or 0)
                new = NewRecords(spec.new, table.schema, frame.toArrow)
            matches = self._matcher.match([self.channel] if rows or not spec.new else [], view_of, new)
            timer.lap("match")
            results = group_results(matches, number, round(number * (spec.period or 1.0) * 1e6))
            stored = self.results.store(number, results, {"position": high})
        else:
            high = int(stored.metadata.get("position", high))
        timer.lap("write")
        self._require_lease()
        published = self.results.publish(stored)
        self._execution, self._position = number, high
        self._save()
        timer.lap("publish")
        self._progress.add(spec.name, rows=rows, refused=0, removed=0, results=published, stages=timer.take())
        return published

    def _run(self) -> None:
        period = self.channel.validated.spec.period or 1.0
        unfinished = self._unfinished()
        while True:
            if unfinished is not None and self._attempt(unfinished):  # stored, but not published completely
                unfinished = None
            if self._stop.wait(max(period - time.time() % period, 0.001)):
                return
            number = int(time.time() / period)
            if unfinished is None and number > self._execution and not self._attempt(number):
                unfinished = self._unfinished()

    def _unfinished(self) -> int | None:
        """The execution whose results are stored but not published, if there is one."""
        try:
            return self.results.next_number(self._execution)
        except Exception as error:  # the next execution finds it
            _log.exception("channel %s: its results cannot be listed", self.channel.name)
            self._failed(self.channel.name, error_line(error))
            return None

    def _attempt(self, number: int) -> bool:
        try:
            self.execute(number)
            return True
        except Exception as error:  # the next execution also takes the records of this one
            if not isinstance(error, NearcastError):
                _log.exception("channel %s, execution %d", self.channel.name, number)
            self._failed(self.channel.name, error_line(error))
            return False

    def _save(self) -> None:
        self._warehouse.save_state(self.results.folder, {"execution": self._execution, "position": self._position})
