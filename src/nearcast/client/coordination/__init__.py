"""A client known to the coordinator: it registers, reports to its home, and moves to another home when told to."""

from nearcast.client.coordination.client_coordinate import ClientCoordinate
from nearcast.client.coordination.coordination import Coordination

__all__ = ["ClientCoordinate", "Coordination"]
