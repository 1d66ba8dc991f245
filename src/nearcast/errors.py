"""One root for every error a user may see; each child also is the builtin a Python reader would expect."""

from __future__ import annotations

__all__ = ["InputError", "InputTypeError", "NearcastError"]


class NearcastError(Exception):
    """Anything Nearcast raises on purpose. Its text says what is wrong and what would be right."""


class InputError(NearcastError, ValueError):
    """A file, an option or a message that came from a user is refused. The command line exits with 2."""


class InputTypeError(InputError, TypeError):
    """An argument of another type than is allowed."""
