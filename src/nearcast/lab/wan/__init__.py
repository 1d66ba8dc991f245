"""A wide area on one machine: a network namespace per node, one process that carries packets between them.

`delay_queue` decides when a packet is due, `forwarder` moves packets, `emulator` is the process, `lifecycle`
starts and stops it, `testing` runs an area for the length of a test.
"""

from nearcast.lab.wan.area import Area
from nearcast.lab.wan.icmp_echo import round_trips
from nearcast.lab.wan.lifecycle import clear_leftovers, find, running, start, stop
from nearcast.lab.wan.namespaces import missing_right
from nearcast.lab.wan.testing import call_at, entered_at, process_at, sites_at, wide_area
from nearcast.lab.wan.topology import LinkSettings, Position, Topology, from_links, from_positions, from_rtts

__all__ = [
    "Area",
    "LinkSettings",
    "Position",
    "Topology",
    "call_at",
    "clear_leftovers",
    "entered_at",
    "find",
    "from_links",
    "from_positions",
    "from_rtts",
    "missing_right",
    "process_at",
    "round_trips",
    "running",
    "sites_at",
    "start",
    "stop",
    "wide_area",
]
