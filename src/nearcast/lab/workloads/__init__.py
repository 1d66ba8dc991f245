"""The workloads of the five papers: seeded functions from parameters, or from real files, to a `Workload`.

A `Workload` holds the tables that `nearcast plan` reads and a `Schedule` of live events that a driver plays.
"""

from nearcast.lab.workloads.schedule import Event, Predicted, Schedule, ScheduleBuilder
from nearcast.lab.workloads.workload import SiteMap, Workload

__all__ = ["Event", "Predicted", "Schedule", "ScheduleBuilder", "SiteMap", "Workload"]
