"""Ends a driver that cannot finish the plan of a channel, and keeps the next driver from trying it forever.

Spark plans in the driver, where nothing can be cancelled. The bounds of queries (`value_bounds`) are for what is
known to be expensive; this is for the rest. A plan that takes long is noted in the warehouse; a driver that does not
finish it ends, and a channel that three drivers in a row did not finish is refused.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from nearcast.errors import InputError

if TYPE_CHECKING:
    from nearcast.cluster.datasets.warehouse import Warehouse
    from nearcast.domain.channel import ChannelSpec

__all__ = ["PlanningGuard"]

_log = logging.getLogger(__name__)
_FILE = "unfinished-plans.json"
_NOTED_AFTER, _ENDED_AFTER = 10.0, 180.0
_ATTEMPTS = 3


class PlanningGuard:
    """Of one driver. end: ends the process. noted_after, ended_after: seconds."""

    def __init__(
        self,
        warehouse: Warehouse,
        end: Callable[[], None] = lambda: os._exit(70),
        noted_after: float = _NOTED_AFTER,
        ended_after: float = _ENDED_AFTER,
    ) -> None:
        self._fs, self._path, self._end = warehouse.fs, f"{warehouse.root}/{_FILE}", end
        self._noted_after, self._ended_after = noted_after, ended_after
        self._unfinished = self._read()

    @contextlib.contextmanager
    def planning(self, channel: ChannelSpec) -> Iterator[None]:
        """Around the planning of a channel. InputError if drivers before this one did not finish it."""
        key = f"{channel.name} {channel.created}"
        if (attempts := self._unfinished.get(key, 0)) >= _ATTEMPTS:
            raise InputError(
                f"channel {channel.name}: {attempts} drivers did not finish planning its query; remove it, and add a "
                "simpler one"
            )
        timers = [
            threading.Timer(self._noted_after, self._note, (key,)),
            threading.Timer(self._ended_after, self._give_up, (channel.name,)),
        ]
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.cancel()
            if self._unfinished.pop(key, None) is not None:
                self._write()

    def _note(self, key: str) -> None:
        self._unfinished[key] = self._unfinished.get(key, 0) + 1
        self._write()

    def _give_up(self, name: str) -> None:
        _log.critical("channel %s: its plan is not finished after %g s; this driver ends", name, self._ended_after)
        self._end()

    def _read(self) -> dict[str, int]:
        try:
            with self._fs.open_input_stream(self._path) as stream:
                return {str(key): int(count) for key, count in json.loads(stream.read()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be read: %s", self._path, error)
            return {}

    def _write(self) -> None:
        try:
            with self._fs.open_output_stream(self._path) as stream:
                stream.write(json.dumps(self._unfinished).encode())
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path, error)
