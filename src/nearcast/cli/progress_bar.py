"""A progress bar on standard error, for work that takes longer than a second in front of a person."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["progress"]

SHOWN_AFTER_SECONDS = 1.0


@contextmanager
def progress(label: str) -> Iterator[Callable[[float], None]]:
    """Yield `advance(fraction)`, to be called with the share of the work that is done, 0 to 1.

    The bar appears once a second has passed, and only when standard error is a terminal. Until the first
    call of `advance` it pulses, so work that cannot tell how far it is still shows that it runs.
    """
    if not sys.stderr.isatty():
        yield lambda fraction: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(label, total=None)
    # A timer and not a look at the clock in `advance`: one long solver call must show its bar too.
    timer = threading.Timer(SHOWN_AFTER_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda fraction: bar.update(task, total=1.0, completed=fraction)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
