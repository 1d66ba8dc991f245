"""Conditions on the fields of a JSON message, written by the client and evaluated at the store.

    from nearcast import field
    where = (field("speed") > 50) & field("kind").one_of("car", "bus") & ~field("ended").exists()

A comparison with a field that is not there, or with a value of another type, does not hold.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from nearcast.errors import InputError

__all__ = ["Condition", "Field", "FilterError", "compile_condition", "condition_cost", "field"]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MISSING = object()
_MOST_PARTS, _MOST_CHARACTERS, _DEEPEST = 2000, 65_536, 64


class FilterError(InputError):
    """A condition that is not one."""


class Condition:
    """A condition; combine with & (and), | (or) and ~ (not)."""

    __slots__ = ("tree",)

    def __init__(self, tree: list[Any]) -> None:
        self.tree = tree

    def __and__(self, other: Condition) -> Condition:
        return Condition(["and", self.tree, _tree(other)])

    def __or__(self, other: Condition) -> Condition:
        return Condition(["or", self.tree, _tree(other)])

    def __invert__(self) -> Condition:
        return Condition(["not", self.tree])

    def __bool__(self) -> bool:
        raise FilterError("conditions are combined with &, | and ~, not with and, or and not")


class Field:
    """A field of the message; dots go deeper, as in field("position.lat")."""

    __slots__ = ("_path",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, path: str) -> None:
        self._path = path

    def __eq__(self, value: Any) -> Condition:  # type: ignore[override]
        return Condition(["=", self._path, value])

    def __ne__(self, value: Any) -> Condition:  # type: ignore[override]
        return Condition(["!=", self._path, value])

    def __lt__(self, value: Any) -> Condition:
        return Condition(["<", self._path, value])

    def __le__(self, value: Any) -> Condition:
        return Condition(["<=", self._path, value])

    def __gt__(self, value: Any) -> Condition:
        return Condition([">", self._path, value])

    def __ge__(self, value: Any) -> Condition:
        return Condition([">=", self._path, value])

    def one_of(self, *values: Any) -> Condition:
        """The field is one of these values."""
        return Condition(["in", self._path, list(values)])

    def exists(self) -> Condition:
        """The field is there, whatever its value."""
        return Condition(["exists", self._path])


def field(path: str) -> Field:
    """A field to make a condition with."""
    if not isinstance(path, str) or not path:
        raise FilterError(f"field {path!r}: a name is needed")
    return Field(path)


def condition_cost(tree: Any) -> int:
    """How many comparisons a condition makes at most; FilterError for one that is larger or deeper than allowed."""
    parts, characters, level = 0, 0, [tree]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for part in level:
            parts += 1
            if isinstance(part, list):
                inner += part
            elif isinstance(part, str | bytes):
                characters += len(part)
            elif isinstance(part, dict):
                raise FilterError("a condition compares with plain values, not with objects")
            if parts + len(inner) > _MOST_PARTS or characters > _MOST_CHARACTERS:
                raise FilterError(
                    f"the condition is too large; allowed: {_MOST_PARTS} parts and {_MOST_CHARACTERS} characters"
                )
        if not inner:
            return parts
        level = inner
    raise FilterError(f"the condition is nested too deeply; allowed: {_DEEPEST} levels")


def compile_condition(tree: Any) -> Callable[[Any], bool]:
    """Turn a condition's tree, which may have come over the network, into a function of the message."""
    condition_cost(tree)
    return _compile(tree)


def _compile(tree: Any) -> Callable[[Any], bool]:
    match tree:
        case ["and" | "or" as word, first, *rest] if rest:
            parts = [_compile(part) for part in (first, *rest)]
            every = all if word == "and" else any
            return lambda message: every(part(message) for part in parts)
        case ["not", inner]:
            negated = _compile(inner)
            return lambda message: not negated(message)
        case ["exists", str(path)]:
            get = _getter(path)
            return lambda message: get(message) is not _MISSING
        case ["in", str(path), list(values)]:
            return _membership(_getter(path), values)
        case [str(sign), str(path), value] if sign in _COMPARISONS:
            return _comparison(_COMPARISONS[sign], _getter(path), value)
    raise FilterError(
        f"condition {tree!r} is not understood; allowed: {', '.join(_COMPARISONS)}, in, exists, and, or, not"
    )


def _membership(get: Callable[[Any], Any], values: list[Any]) -> Callable[[Any], bool]:
    hashable = frozenset(value for value in values if not isinstance(value, list))
    lists = [value for value in values if isinstance(value, list)]

    def holds(message: Any) -> bool:
        found = get(message)
        return found in lists if isinstance(found, list | dict) else found in hashable

    return holds


def _comparison(compare: Callable[[Any, Any], bool], get: Callable[[Any], Any], value: Any) -> Callable[[Any], bool]:
    def holds(message: Any) -> bool:
        found = get(message)
        if found is _MISSING:
            return False
        try:
            return bool(compare(found, value))
        except TypeError:
            return False

    return holds


def _getter(path: str) -> Callable[[Any], Any]:
    names = path.split(".")
    if len(names) == 1:
        return lambda message: message.get(path, _MISSING) if isinstance(message, dict) else _MISSING

    def get(message: Any) -> Any:
        for name in names:
            if not isinstance(message, dict):
                return _MISSING
            message = message.get(name, _MISSING)
        return message

    return get


def _tree(condition: Condition) -> list[Any]:
    if not isinstance(condition, Condition):
        raise FilterError(f"{condition!r} is not a condition; make one with field(...)")
    return condition.tree
