"""A wide area on one machine: a network namespace per node, one process that carries packets between them.

`flight` decides when a packet is due, `forwarder` moves packets, `emulator` is the process, `lifecycle`
starts and stops it, `inside` is for tests.
"""

from nearcast.lab.wan.areas import Area
from nearcast.lab.wan.inside import call_at, entered_at, process_at, sites_at, wide_area
from nearcast.lab.wan.lifecycle import clear_leftovers, find, running, start, stop
from nearcast.lab.wan.namespaces import missing_right
from nearcast.lab.wan.probe import round_trips
from nearcast.lab.wan.topology import Position, Topology, Way, from_positions, from_rtts, from_ways

__all__ = [
    "Area",
    "Position",
    "Topology",
    "Way",
    "call_at",
    "clear_leftovers",
    "entered_at",
    "find",
    "from_positions",
    "from_rtts",
    "from_ways",
    "missing_right",
    "process_at",
    "round_trips",
    "running",
    "sites_at",
    "start",
    "stop",
    "wide_area",
]
