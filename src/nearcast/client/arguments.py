"""Arguments of the client's methods are checked where they are given: a wrong one would fail later, and elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from typing import Any

from nearcast.errors import InputError, InputTypeError

__all__ = ["check_connect", "check_subscribe", "checked_position"]

_Kinds = Mapping[str, tuple[tuple[Any, ...], str]]  # the types that are allowed, and in words
_TEXT = ((str,), "a text")
_PATH = ((str, PathLike), "a name or a path")
_SECONDS = ((int, float), "a number of seconds")
_ADDRESSES = ((str, Sequence), "an address or several")


def check_connect(**given: Any) -> None:
    """Of `connect`."""
    codec = given.pop("codec")
    if not all(callable(getattr(codec, method, None)) for method in ("encode", "decode")):
        raise InputTypeError(f"connect: codec is {codec!r}; allowed: an object with the methods encode and decode")
    kinds: _Kinds = {
        "urls": _ADDRESSES,
        "coordinator": _ADDRESSES,
        "name": _TEXT,
        "timeout": _SECONDS,
        "report_seconds": _SECONDS,
        "spool": _PATH,
    }
    _check("connect", given, kinds)


def check_subscribe(**given: Any) -> None:
    """Of `subscribe`."""
    for name in ("callback", "on_error"):
        if (value := given.pop(name)) is not None and not callable(value):
            raise InputTypeError(f"subscribe: {name} is {value!r}; allowed: a function")
    kinds: _Kinds = {
        "topic": _TEXT,
        "channel": _TEXT,
        "params": ((Mapping,), "a mapping of names to values"),
        "replay": ((bool, int, datetime, timedelta), "True, a number of messages, a time, a time span"),
        "cursor": _PATH,
        "buffer": ((int,), "a number of messages"),
    }
    _check("subscribe", given, kinds)


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


def _check(method: str, given: dict[str, Any], kinds: _Kinds) -> None:
    for name, value in given.items():
        allowed, words = kinds[name]
        numbers_only = bool not in allowed and isinstance(value, bool)
        if value is not None and (numbers_only or not isinstance(value, allowed)):
            raise InputTypeError(f"{method}: {name} is {value!r}; allowed: {words}")
