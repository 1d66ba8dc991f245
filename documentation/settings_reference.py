"""The page of settings: the structs that read `nearcast.toml` and the coordinator's file, with the comments on them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from documentation.tables import table
from nearcast.config.coordinator_settings import CoordinatorSettings
from nearcast.domain.deployment import AuthSpec, ClusterSpec
from nearcast.domain.processor_limits import ProcessorLimits
from nearcast.domain.site import Limits, SiteSpec, StoreSpec
from nearcast.domain.topic import TopicSpec

__all__ = ["settings_reference"]

_EXAMPLE = Path(__file__).parents[1] / "examples" / "nearcast.toml"
_TABLES: dict[str, type[msgspec.Struct]] = {
    "[[site]]": SiteSpec,
    "[site.store]": StoreSpec,
    "[site.limits]": Limits,
    "[[topic]]": TopicSpec,
    "[processor_limits]": ProcessorLimits,
    "[auth]": AuthSpec,
    "[cluster]": ClusterSpec,
}
_NESTED = ("store", "limits")


def settings_reference() -> str:
    """The page as text."""
    comments = _example_comments()
    top = [(f"`{key}`", comments["", key]) for key in ("processors", "report_seconds", "insecure")]
    parts = [f"## `{name}`\n\n{_table(struct, name, comments)}" for name, struct in _TABLES.items()]
    return f"""# Settings

## nearcast.toml

Each key with a comment is in [examples/nearcast.toml](../../examples/nearcast.toml). A `[[tenant]]` table
has a `name`, and `topic`, `processors` and `cluster` of its own ([security](../security.md#tenants)).

{table(("key", "what"), top)}

{chr(10).join(part + chr(10) for part in parts)}
## The coordinator

`nearcast coordinator run --settings FILE`, a TOML file of `key = value`. Times are seconds.

{_table(CoordinatorSettings, "", {})}

## The environment

{table(("variable", "what"), _VARIABLES.items())}
"""


_VARIABLES = {
    "`NEARCAST_URL`": "the broker that commands talk to; `--url` comes first, a selected `nearcast context` last",
    "`NEARCAST_CREDS`": "the credentials file of commands, coordinators, the console and clients",
    "`NEARCAST_AUTH`": "the folder of keys of `nearcast auth` and `nearcast audit`",
}


def _table(struct: type[msgspec.Struct], name: str, comments: dict[tuple[str, str], str]) -> str:
    rows = []
    beside, described = _source_comments(struct), _docstring(struct)
    for field in msgspec.structs.fields(struct):
        key = field.encode_name
        if key in _NESTED:
            continue
        what = beside.get(key) or comments.get((name, key)) or described.get(key, "")
        rows.append((f"`{key}`", _default(field), _allowed(struct, key), what))
    return table(("key", "default", "allowed", "what"), rows)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = msgspec.to_builtins(field.default if field.default is not msgspec.NODEFAULT else field.default_factory())
    return "" if value is None else f"`{json.dumps(value)}`"


def _allowed(struct: type[msgspec.Struct], key: str) -> str:
    schema = msgspec.json.schema(struct, schema_hook=lambda kind: {"type": "string"})
    found = schema["$defs"][struct.__name__]["properties"][key]
    return _described(found, schema["$defs"])


def _described(found: dict[str, Any], names: dict[str, Any]) -> str:
    if "$ref" in found:
        return _described(names[found["$ref"].rpartition("/")[2]], names)
    if "anyOf" in found:
        return " or ".join(_described(part, names) for part in found["anyOf"] if part.get("type") != "null")
    if "description" in found and found.get("type") != "array":
        return str(found["description"])
    if "enum" in found:
        return ", ".join(f"`{value}`" for value in found["enum"])
    limits = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    words = [f"{word} {found[limit]:,}" for limit, word in limits.items() if limit in found]
    kind = {"array": "a list", "object": "a table", "string": "text", "boolean": "true or false"}.get(
        found.get("type", ""), found.get("type", "")
    )
    return " ".join([kind, *words])


def _source_comments(struct: type) -> dict[str, str]:
    """`key: type = default  # comment`"""
    return dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(struct), re.MULTILINE))


def _docstring(struct: type) -> dict[str, str]:
    """`key: what it is.` in the struct's description."""
    text = " ".join((inspect.getdoc(struct) or "").split())
    found = re.split(r"(?:^|(?<=\. )|(?<=: ))(\w+):\s+", text)
    return {key: what.strip().rstrip(".") for key, what in zip(found[1::2], found[2::2], strict=False)}


def _example_comments() -> dict[tuple[str, str], str]:
    """`key = value  # comment` of the example, by table; lines that are commented out count, too."""
    found: dict[tuple[str, str], str] = {}
    for name, key, comment in _lines(_EXAMPLE.read_text()):
        found.setdefault((name, key), comment)
    return found


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    name = ""
    for line in text.splitlines():
        plain = line.removeprefix("# ")
        if found := re.match(r"(\[\[?[\w.]+\]\]?)", plain):
            name = found[1]
        elif found := re.match(r"(\w+) = .*?\s+# (.+)$", plain):
            yield name, found[1], found[2]
