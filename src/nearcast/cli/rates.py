"""Rates on the command line: 100/s, 6k/m, 1MB/s."""

from __future__ import annotations

import re

from nearcast.errors import InputError

__all__ = ["send_rates"]

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)/(s|min|h)")
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_MESSAGES = {"": 1, "k": 1e3, "M": 1e6}
_BYTES = {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def send_rates(messages: str, size: str) -> tuple[float, float]:
    """Messages and bytes per second, as --rate and --bytes give them; -1 for nothing."""
    return (
        _rate(messages, "--rate", _MESSAGES, "100/s, 5k/s or 6000/min"),
        _rate(size, "--bytes", _BYTES, "500kB/s, 1MB/s or 2GB/h"),
    )


def _rate(text: str, option: str, units: dict[str, float], allowed: str) -> float:
    if not text:
        return -1
    found = _RATE.fullmatch(text)
    if found is None or found[2] not in units:
        raise InputError(f"{option} is {text!r}; allowed: a rate such as {allowed}")
    rate = float(found[1]) * units[found[2]] / _SECONDS[found[3]]
    if not rate:
        raise InputError(f"{option} is {text!r}, and nothing could ever be sent; allowed: a rate such as {allowed}")
    return rate
