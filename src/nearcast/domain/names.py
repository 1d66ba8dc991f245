"""Names that travel in subjects and queries."""

from __future__ import annotations

import re

from nearcast.errors import InputError

__all__ = ["NAME_PATTERN", "NAME_RULE", "check_identifier", "check_name"]

NAME_PATTERN = "[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
NAME_RULE = "letters, digits, - and _, 63 at most, a letter or digit first"
_IDENTIFIER = re.compile("[a-z][a-z0-9_]{0,62}")


def check_name(name: str, what: str) -> str:
    """Return a site's, client's or worker's name if it can be part of a subject; raise InputError otherwise."""
    if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"{what} name is {name!r}; allowed: {NAME_RULE}")
    return name


def check_identifier(name: str, what: str) -> str:
    """Return the name of a dataset, channel or parameter if it can stand in a query; raise InputError otherwise."""
    if not _IDENTIFIER.fullmatch(name):
        raise InputError(f"{what} {name!r}: small letters, digits and _ are allowed, 63 at most, a letter first")
    return name
