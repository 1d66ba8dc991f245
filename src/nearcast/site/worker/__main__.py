"""`python -m nearcast.site.worker`: the worker process. Its assignment comes as JSON on standard input."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import msgspec
import uvloop

from nearcast.errors import NearcastError
from nearcast.processors import ProcessorError
from nearcast.protocol.worker import WorkerAssignment
from nearcast.site.supervisor import REFUSED
from nearcast.site.worker.worker import run_worker
from nearcast.tracing import enable_by_environment

_END_LIMIT = 30  # s


async def _run_until_signal(assignment: WorkerAssignment) -> None:
    task = asyncio.current_task()
    assert task is not None

    def end() -> None:
        signal.alarm(_END_LIMIT)  # a last resort
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    await run_worker(assignment)


def main() -> None:
    """Work until a signal comes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerAssignment)
    try:
        enable_by_environment("nearcast-worker")
        uvloop.run(_run_until_signal(assignment))
    except ProcessorError as error:  # the user's modules: another start would not help
        print(error, file=sys.stderr)
        sys.exit(REFUSED)
    except NearcastError as error:
        sys.exit(str(error))
    except asyncio.CancelledError:
        sys.exit(0)


if __name__ == "__main__":
    main()
