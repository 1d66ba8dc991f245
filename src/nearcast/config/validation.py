"""TOML files as structs. An error names the file, the key, its value and what is allowed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from nearcast.errors import InputError

__all__ = ["read_toml", "to_struct"]

T = TypeVar("T")


def read_toml(path: Path, kind: type[T], dec_hook: Callable[[type, Any], Any] | None = None) -> T:
    """The file as a struct of this type; dec_hook makes what msgspec does not know, such as a Path."""
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not TOML: {error}") from None
    try:
        return to_struct(raw, kind, dec_hook)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def to_struct(raw: dict[str, Any], kind: type[T], dec_hook: Callable[[type, Any], Any] | None = None) -> T:
    """What a user wrote as a struct of this type."""
    try:
        return msgspec.convert(raw, kind, dec_hook=dec_hook)
    except msgspec.ValidationError as error:
        raise InputError(_explain(str(error), raw, kind)) from None


def _explain(text: str, raw: Any, kind: type) -> str:
    """msgspec says what is wrong and where (`$.site[2].port`); add the value and what the type allows there."""
    problem, _, location = text.rpartition(" - at `$") if " - at `$" in text else (text, "", "")
    key = location.rstrip("`").lstrip(".")
    value, expected = raw, inspect.type_info(kind)
    for step in re.findall(r"\w+", key):
        value = value[int(step) if isinstance(value, list) else step]
        expected = _part(expected, step)
    table = _plain(expected)
    if isinstance(table, inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field for field in table.fields}
        for name in value:
            if name not in known:
                at = f"{key}.{name}" if key else name
                return f"{at} is {value[name]!r}, an unknown key; allowed: {', '.join(known)}"
        for name, field in known.items():
            if field.required and name not in value:
                return f"{key or 'the file'}: the key `{name}` is missing"
        return f"{key}: {problem}"
    allowed = "" if ", got " in problem else _allowed(expected)
    return f"{key} is {value!r}; " + (f"allowed: {allowed}" if allowed else problem[0].lower() + problem[1:])


def _plain(kind: inspect.Type) -> inspect.Type:
    """A type without its description, and without None where it is optional."""
    while True:
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            kind = next(part for part in kind.types if not isinstance(part, inspect.NoneType))
        else:
            return kind


def _part(kind: inspect.Type, step: str) -> inspect.Type:
    match _plain(kind):
        case inspect.StructType(fields=fields):
            return next(field.type for field in fields if field.encode_name == step)
        case inspect.TupleType(item_types=kinds):
            return kinds[int(step)]
        case inspect.ListType(item_type=part) | inspect.VarTupleType(item_type=part):
            return part
    return inspect.AnyType()


def _allowed(kind: inspect.Type) -> str:
    """What a type allows: its description, its values, or its range."""
    if isinstance(kind, inspect.UnionType):
        return _allowed(next(part for part in kind.types if not isinstance(part, inspect.NoneType)))
    if isinstance(kind, inspect.Metadata):
        return str((kind.extra_json_schema or {}).get("description") or _allowed(kind.type))
    match kind:
        case inspect.LiteralType(values=values):
            return ", ".join(map(str, values))
        case inspect.IntType(gt=above, ge=least, le=most) | inspect.FloatType(gt=above, ge=least, le=most):
            low = f"above {above}" if above is not None else f"{least}" if least is not None else ""
            if most is None:
                return low if above is not None or not low else f"{low} or more"
            return f"{low} to {most}" if low else f"up to {most}"
    return ""
