"""Nearcast: publish, process and subscribe at the edge."""

from nearcast.domain.errors import InputError, NearcastError

__all__ = ["InputError", "NearcastError"]
