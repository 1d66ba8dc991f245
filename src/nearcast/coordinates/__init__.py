"""Vivaldi network coordinates: the live update of one node, and a simulator over measured round trips.

`Node` is plain Python, for devices; `nearcast.coordinates.simulation` needs NumPy and is imported by name.
"""

from nearcast.coordinates.node import Coordinate, Node, VivaldiSettings, round_trip_ms

__all__ = ["Coordinate", "Node", "VivaldiSettings", "round_trip_ms"]
