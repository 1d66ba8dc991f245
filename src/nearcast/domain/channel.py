"""Channels: a parameterised query over datasets. A subscription is a channel with values for its parameters."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from nearcast.domain.names import check_identifier
from nearcast.errors import InputError

__all__ = ["PARAMETER_TYPES", "ChannelSpec", "Parameter", "check_channel", "check_values", "subscription_key"]

PARAMETER_TYPES = ("string", "int", "bigint", "double", "boolean", "date", "timestamp")
_LONGEST_TEXT = 4096  # characters of a value: each subscription is kept by stores and the data cluster
_MOST_PARAMETERS = 100
_WHOLE = {"int": 31, "bigint": 63}


@dataclass(frozen=True)
class Parameter:
    """A typed parameter, written `:name` in the query."""

    name: str
    type: str


@dataclass(frozen=True)
class ChannelSpec:
    """A channel.

    period: seconds between executions; None means continuous: as soon as records come.
    new: the dataset of which each record is read once, by the execution after it came; empty when every execution
    reads all that is kept. keep_seconds: how long results are kept. created: when it was added; it distinguishes a
    channel from an earlier one of the same name.
    """

    name: str
    query: str
    parameters: tuple[Parameter, ...] = ()
    period: float | None = None
    new: str = ""
    keep_seconds: float = 3600.0
    created: int = 0

    @property
    def continuous(self) -> bool:
        """Whether results are made as records come, not by the clock."""
        return self.period is None


def check_channel(channel: ChannelSpec) -> ChannelSpec:
    """Return the channel if its names, types and times can be right; the query is checked by Spark."""
    check_identifier(channel.name, "channel name")
    if len(channel.parameters) > _MOST_PARAMETERS:
        count = len(channel.parameters)
        raise InputError(f"channel {channel.name} has {count} parameters; {_MOST_PARAMETERS} are allowed")
    seen = set()
    for parameter in channel.parameters:
        check_identifier(parameter.name, f"channel {channel.name}, parameter")
        at = f"channel {channel.name}, parameter {parameter.name!r}"
        if parameter.type not in PARAMETER_TYPES:
            raise InputError(f"{at}: type is {parameter.type!r}; allowed: {', '.join(PARAMETER_TYPES)}")
        if parameter.name in seen:
            raise InputError(f"{at} is there twice")
        seen.add(parameter.name)
    if channel.period is not None and not 0.1 <= channel.period <= 86_400:
        raise InputError(f"channel {channel.name}: period is {channel.period:g}; 0.1 to 86400 seconds are allowed")
    if not channel.keep_seconds > 0:
        raise InputError(f"channel {channel.name}: keep is {channel.keep_seconds:g}; seconds above 0 are needed")
    return channel


def check_values(channel: ChannelSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a subscription in the types of the parameters, or an InputError that names the wrong one."""
    names = [parameter.name for parameter in channel.parameters]
    for name in values:
        if name not in names:
            raise InputError(f"channel {channel.name} has no parameter {name!r}; it has: {', '.join(names) or 'none'}")
    for name in names:
        if name not in values:
            raise InputError(f"channel {channel.name}: parameter {name!r} is missing")
    return {
        parameter.name: _value(
            f"channel {channel.name}, parameter {parameter.name}", parameter.type, values[parameter.name]
        )
        for parameter in channel.parameters
    }


def subscription_key(values: Mapping[str, Any]) -> str:
    """A stable hash of checked values: equal subscriptions have equal keys, whoever makes them."""
    text = json.dumps(dict(sorted(values.items())), separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _value(at: str, kind: str, value: Any) -> Any:
    if kind == "string" and isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise InputError(f"{at} has {len(value)} characters; {_LONGEST_TEXT} are allowed")
        return value
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in _WHOLE and isinstance(value, int) and not isinstance(value, bool):
        if -(1 << _WHOLE[kind]) <= value < 1 << _WHOLE[kind]:
            return value
        raise InputError(f"{at} is {value}, which is too large for {kind}")
    if kind == "double" and isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value) + 0.0  # -0.0 and 0.0 are one subscription
    if kind in ("date", "timestamp") and isinstance(value, str):
        return _moment(at, kind, value)
    raise InputError(f"{at} is {value!r}; {kind} is needed")


def _moment(at: str, kind: str, value: str) -> str:
    """A date or time in ISO 8601, always written in the same way; a time without a zone is UTC."""
    try:
        if kind == "date":
            return date.fromisoformat(value).isoformat()
        moment = datetime.fromisoformat(value)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        example = "2026-05-31" if kind == "date" else "2026-05-31T12:00:00Z"
        raise InputError(f"{at} is {value!r}; a {kind} such as {example} is needed") from None
    return moment.isoformat(timespec="microseconds")
