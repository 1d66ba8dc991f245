"""Cells of CSV as the values of JSON that a record is fed with, by the types of its dataset's columns."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

__all__ = ["cell_value"]

_WHOLE = {"TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"}
_BIGINTS = 1 << 63
_FLOATING = {"FLOAT", "REAL", "DOUBLE"}
_NESTED = {"ARRAY", "STRUCT"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def cell_value(text: str | None, kind: str) -> Any:
    """The value of a cell. One that does not fit stays a text, for which the data cluster refuses this record alone."""
    if text is None:
        return None
    if kind in _WHOLE:
        whole = re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text) and -_BIGINTS <= int(text) < _BIGINTS
        return int(text) if whole else text
    if kind in _FLOATING:
        return _fraction(text)
    if kind == "BOOLEAN":
        return _BOOLEANS.get(text.strip().lower(), text)
    if kind in _NESTED:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
    return text  # also of a DECIMAL, which loses nothing so


def _fraction(text: str) -> float | str:
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) and "_" not in text else text
