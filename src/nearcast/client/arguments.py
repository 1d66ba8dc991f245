"""Arguments of the client's methods are checked where they are given: a wrong one would fail later, and elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import Any

from nearcast.errors import InputError, InputTypeError

__all__ = ["check_arguments", "check_parameters", "checked_position"]

_TEXT = ((str,), "a text")
_PATH = ((str, PathLike), "a name or a path")
_SECONDS = ((int, float), "a number of seconds")
_ADDRESSES = ((str, Sequence), "an address or several")
_FUNCTION = ((Callable,), "a function")
_ALLOWED: dict[str, tuple[tuple[Any, ...], str]] = {  # types, and the same in words
    "urls": _ADDRESSES,
    "coordinator": _ADDRESSES,
    "name": _TEXT,
    "timeout": _SECONDS,
    "report_seconds": _SECONDS,
    "spool": _PATH,
    "callback": _FUNCTION,
    "on_error": _FUNCTION,
    "topic": _TEXT,
    "channel": _TEXT,
    "params": ((Mapping,), "a mapping of names to values"),
    "replay": ((bool, int, datetime, timedelta), "True, a number of messages, a time, a time span"),
    "cursor": _PATH,
    "buffer": ((int,), "a number of messages"),
}


def check_arguments(method: str, given: Mapping[str, Any]) -> None:
    """Of `connect` or `subscribe`, by name. Those of other types are checked where they are used."""
    for name, (types, words) in _ALLOWED.items():
        value = given.get(name)
        numbers_only = bool not in types and isinstance(value, bool)
        if value is not None and (numbers_only or not isinstance(value, types)):
            raise InputTypeError(f"{method}: {name} is {value!r}; allowed: {words}")


def check_parameters(params: Mapping[str, Any] | None) -> None:
    """Of a channel. The rest is known to those who have the channel, but JSON has no number for these."""
    for name, value in (params or {}).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"subscribe: parameter {name} is {value}; allowed: finite numbers")


def checked_position(given: Any) -> tuple[float, float] | None:
    """Latitude and longitude, or nothing."""
    if given is None:
        return None
    try:
        latitude, longitude = map(float, given)
        valid = abs(latitude) <= 90 and abs(longitude) <= 180  # which NaN is not
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InputError(f"position is {given!r}; allowed: latitude and longitude in degrees, such as (35.7, 139.8)")
    return latitude, longitude
