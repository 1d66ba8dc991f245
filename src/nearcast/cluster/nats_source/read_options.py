"""The options of `spark.read.format("nats")`, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nearcast.errors import InputError
from nearcast.nats import subjects

__all__ = ["ReadOptions", "server_list"]

_NAMES = (
    "servers", "stream", "domain", "subject", "startingSequence", "maxRowsPerBatch", "partitions", "valueSchema",
    "failOnRemoved", "pushFilters", "path",
)  # fmt: skip


@dataclass(frozen=True)
class ReadOptions:
    """prefix: of the JetStream API of the store. value_schema: DDL of the payloads, or nothing."""

    servers: tuple[str, ...]
    streams: tuple[str, ...]
    prefix: str
    subject: str
    starting: str
    max_rows: int
    partitions: int
    value_schema: str
    fail_on_removed: bool
    push_filters: bool

    @staticmethod
    def of(options: Mapping[str, str]) -> ReadOptions:
        """Validate the options; InputError names the one that is wrong."""
        given = {key.lower(): value for key, value in options.items()}
        known = {name.lower() for name in _NAMES}
        for name in given:
            if name not in known:
                raise InputError(f"option {name!r} of the nats source is unknown; allowed: {', '.join(_NAMES)}")
        streams = tuple(part.strip() for part in given.get("stream", "").split(",") if part.strip())
        if not streams:
            raise InputError("option stream of the nats source is missing: one stream, or several separated by commas")
        domain = given.get("domain", "")
        return ReadOptions(
            servers=server_list(options),
            streams=streams,
            prefix=subjects.store_api(domain) if domain else "$JS.API",
            subject=given.get("subject", ""),
            starting=given.get("startingsequence", "earliest").strip(),
            max_rows=_positive(given, "maxrowsperbatch", 250_000),
            partitions=_positive(given, "partitions", 2),
            value_schema=given.get("valueschema", ""),
            fail_on_removed=_boolean(given, "failonremoved"),
            push_filters=_boolean(given, "pushfilters"),
        )


def server_list(options: Mapping[str, str]) -> tuple[str, ...]:
    """The addresses in the option `servers`."""
    given = next((value for key, value in options.items() if key.lower() == "servers"), "nats://127.0.0.1:4222")
    return tuple(part.strip() for part in given.split(",") if part.strip())


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"option {name} of the nats source is {text!r}; allowed: a whole number, at least 1")
    return int(text)


def _boolean(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InputError(f"option {name} of the nats source is {text!r}; allowed: true, false")
    return text == "true"
