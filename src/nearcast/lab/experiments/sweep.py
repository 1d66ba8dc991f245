"""Running the tasks of an experiment: here, in processes, or as tasks of Spark."""

from __future__ import annotations

import multiprocessing
import os
import resource
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait
from multiprocessing.connection import wait as connection_wait
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.lab.experiments.results import Results

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nearcast.lab.experiments.experiment import Experiment, Row, Task
    from nearcast.placement.progress import Advance

__all__ = ["ExperimentError", "described", "sweep"]


class ExperimentError(NearcastError):
    """A task of an experiment failed."""


def sweep(
    experiment: Experiment, tasks: Sequence[Task], advance: Advance, *, master: str | None = None, processes: int = 0
) -> Results:
    """All rows in the order of the tasks, each with the values of its point and its seed.

    master: of a Spark cluster that has this package; else `processes` of this machine (0: one per core).
    """
    started, used = time.perf_counter(), _processor_seconds()
    count = min(processes or len(os.sched_getaffinity(0)), len(tasks))
    if not experiment.parallel:
        engine, rows = "one task at a time", _here(experiment, tasks, advance)
    elif master is not None:
        engine, rows = f"Spark, {master}", _by_spark(experiment, tasks, advance, master)
    elif count == 1:
        engine, rows = "1 process", _here(experiment, tasks, advance)
    else:
        engine, rows = f"{count} processes", _by_processes(experiment, tasks, advance, count)
    whole = [
        {**task.point, "seed": float(task.seed), **row} for task, part in zip(tasks, rows, strict=True) for row in part
    ]
    about = described(tasks) | {
        "seconds": round(time.perf_counter() - started, 1),
        "processor_seconds": round(_processor_seconds() - used, 1),
        "engine": engine,
    }
    return Results(whole, [*tasks[0].point, "seed"], about)


def described(tasks: Sequence[Task]) -> dict[str, object]:
    """What tells one run of an experiment from another."""
    return {
        "quick": any(task.quick for task in tasks),
        "seeds": len({task.seed for task in tasks}),
        "tasks": len(tasks),
        "real_data": any(task.data is not None for task in tasks),
    }


def _processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _here(experiment: Experiment, tasks: Sequence[Task], advance: Advance) -> list[list[Row]]:
    rows = []
    for number, task in enumerate(tasks):
        rows.append(_measure(experiment.measure, task))
        advance((number + 1) / len(tasks))
    return rows


def _by_processes(experiment: Experiment, tasks: Sequence[Task], advance: Advance, count: int) -> list[list[Row]]:
    # Spawned, not forked: this process may have threads (the progress bar, linear algebra).
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(count, context, initializer=_begin_process) as pool:
        jobs = {pool.submit(_measure, experiment.measure, task): number for number, task in enumerate(tasks)}
        rows: list[list[Row]] = [[] for _ in tasks]
        try:
            for done, job in enumerate(as_completed(jobs)):
                rows[jobs[job]] = job.result()
                advance((done + 1) / len(tasks))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # a task may take minutes, and nobody wants its rows any more
            raise
    return rows


def _by_spark(experiment: Experiment, tasks: Sequence[Task], advance: Advance, master: str) -> list[list[Row]]:
    from nearcast.cluster.spark_session import spark_session, stop_spark

    context = spark_session(f"nearcast lab run {experiment.name}", master).sparkContext
    done = context.accumulator(0)
    measure = experiment.measure

    def run(task: Task) -> list[Row]:
        rows = _measure(measure, task)
        done.add(1)
        return rows

    try:
        with ThreadPoolExecutor(1) as thread:
            job = thread.submit(context.parallelize(list(tasks), len(tasks)).map(run).collect)
            while not wait([job], timeout=0.5).done:
                advance(done.value / len(tasks))
            return list(job.result())
    finally:
        stop_spark()


def _measure(measure: Callable[[Task], Iterable[Row]], task: Task) -> list[Row]:
    """The tasks share the cores: more threads for linear algebra in each would only get in each other's way."""
    import threadpoolctl

    try:
        with threadpoolctl.threadpool_limits(1):
            return [dict(row) for row in measure(task)]
    except NearcastError as error:
        where = ", ".join(f"{name} {value}" for name, value in task.point.items())
        raise ExperimentError(f"the task with {where}, seed {task.seed} failed: {error}") from error


def _begin_process() -> None:
    """A process whose parent was killed would wait for tasks forever: it ends with its parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        connection_wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
