"""The page of subjects: each function of `nats/subjects.py`, called with names in angle brackets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from documentation.tables import table
from nearcast.coordinator.api import CoordinatorApi
from nearcast.nats import subjects

__all__ = ["subjects_reference"]

_NO_SUBJECTS = {  # questions about subjects, or parts of some
    "handed_topic", "history_scope", "history_scopes", "inbox_owner", "is_answerable", "is_notification",
    "marks_of_family", "may_keep", "stream_name", "subject_text", "topic_of",
}  # fmt: skip
_NAMES_OF_STREAMS = {"channel_stream", "feed_stream"}
_CONSTANTS = {
    "ADVERTISEMENTS": "All advertisements.",
    "MQTT_STREAM": "The stream of what MQTT devices publish with QoS 1.",
    "REPORTS": "All reports of sites.",
    "SITE_DISCOVERY": "Request that every site answers.",
    "STATE_BUCKET": "The key-value bucket of the cloud's store in which coordinators keep what they know.",
    "STATE_COPY_BUCKET": "The copy of that bucket in the store of another site.",
}


def subjects_reference() -> str:
    """The page as text."""
    rows = [(f"`{subject}`", what) for subject, what in _subjects()]
    streams = [(f"`{_rendered(getattr(subjects, name))}`", _what(name)) for name in sorted(_NAMES_OF_STREAMS)]
    constants = [(f"`{getattr(subjects, name)}`", what) for name, what in _CONSTANTS.items()]
    return f"""# Subjects

What travels on which NATS subject. Which role may use which: [security](../security.md#roles). How to take
part without our client: [wire format](../wire-format.md). All requests follow the conventions of NATS
services (`nats micro ls`).

{table(("subject", "what"), rows)}

## Requests to the coordinator

JSON in, JSON out. Site registrations and those of clients have the name of who asks behind them.

{table(("subject", "body", "what"), _coordinator_requests())}

## Names that never change

{table(("name", "what"), constants)}

## Streams

A topic is kept by a stream of its own at each of its stores; bytes of its name but letters, digits and `-`
are written `_` and two hexadecimal digits: `gps.*` is `{subjects.stream_name("gps.*")}`.

{table(("stream", "what"), streams)}
"""


def _subjects() -> Iterator[tuple[str, str]]:
    found = {}
    for name in subjects.__all__:
        made = getattr(subjects, name)
        if callable(made) and name not in _NO_SUBJECTS | _NAMES_OF_STREAMS:
            found[_rendered(made)] = _what(name)
    yield from sorted(found.items())


def _coordinator_requests() -> list[tuple[str, str, str]]:
    nothing: Any = None  # no request is answered: only the endpoints are listed
    api = CoordinatorApi(*(nothing,) * 9)
    return [
        (
            f"`{endpoint.subject}`",
            ", ".join(f"`{key}`" for key in endpoint.request.__struct_fields__),
            " ".join((inspect.getdoc(endpoint.request) or "").split("\n\n")[0].split()),
        )
        for endpoint in sorted(api.endpoints(), key=lambda one: one.subject)
    ]


def _rendered(function: Callable[..., str]) -> str:
    return function(*(f"<{name}>" for name in inspect.signature(function).parameters))


def _what(name: str) -> str:
    return (inspect.getdoc(getattr(subjects, name)) or "").replace("`", "")
