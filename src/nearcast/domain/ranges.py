"""What a field of a message may hold: names, counts and times with their ranges, for the structs that travel.

msgspec checks these where a message is decoded. A NaN is outside every range.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from nearcast.domain.latency_histogram import BUCKETS
from nearcast.domain.names import NAME_PATTERN, NAME_RULE

__all__ = [
    "DIMENSIONS",
    "LARGEST_FIGURE",
    "Address",
    "AnyTopic",
    "Bucket",
    "Centroid",
    "Coordinates",
    "Count",
    "Figure",
    "Hash",
    "Histogram",
    "Identifier",
    "Latitude",
    "Longitude",
    "Microseconds",
    "Milliseconds",
    "Name",
    "NameOrNone",
    "ReportedTopic",
    "Seconds",
    "Sequence",
    "Term",
    "Text",
    "TopicPattern",
]

DIMENSIONS = 8
"""Of network coordinates."""

LARGEST_FIGURE = 1e15
"""What is made of figures that others sent is cut here, or nobody could read it."""

_LEVEL = r"[^\s.*>+#/$\x00-\x1f][^\s.*>+#/\x00-\x1f]*"
_PATTERN = rf"(?:(?:{_LEVEL}|\*)\.)*(?:{_LEVEL}|\*|>)"
_LARGEST = 1 << 53  # of what is counted; a number beyond it was made up
_CHARACTERS_OF_A_TOPIC = 200
_CHARACTERS_OF_A_SUBJECT = 4096  # a broker takes no longer one

Name = Annotated[str, Meta(pattern=rf"^{NAME_PATTERN}\Z", description=NAME_RULE)]
NameOrNone = Annotated[str, Meta(pattern=rf"^(?:{NAME_PATTERN})?\Z", description=f"nothing, or {NAME_RULE}")]
Identifier = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,62}\Z")]
Address = Annotated[str, Meta(pattern=r"^[!-~]{1,512}\Z")]
Text = Annotated[str, Meta(max_length=2000)]

TopicPattern = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=_CHARACTERS_OF_A_TOPIC,
        pattern=rf"^{_PATTERN}\Z",
        description=f"levels separated by dots, as in gps.north.*; at most {_CHARACTERS_OF_A_TOPIC} characters",
    ),
]
ReportedTopic = Annotated[str, Meta(max_length=300, pattern=rf"^(?:channel [a-z][a-z0-9_]{{0,62}}|{_PATTERN})\Z")]
"""A topic, or a channel as `channel <name>`."""
AnyTopic = Annotated[str, Meta(min_length=1, max_length=_CHARACTERS_OF_A_SUBJECT)]
"""A concrete topic that a device made up: the broker has limited it."""

Count = Annotated[int, Meta(ge=0, le=_LARGEST)]
Sequence = Annotated[int, Meta(ge=-1, le=_LARGEST)]
"""A sequence or revision; -1 before the first."""
Hash = Annotated[int, Meta(ge=0)]
Term = Annotated[int, Meta(ge=0, le=_LARGEST)]
Microseconds = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Milliseconds = Annotated[float, Meta(ge=0, le=1e9)]
Figure = Annotated[float, Meta(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)]
"""A rate or share; negative for a moment when a server was restarted and counts again."""
Bucket = Annotated[int, Meta(ge=0, lt=BUCKETS)]
Histogram = Annotated[dict[Bucket, Count], Meta(max_length=BUCKETS)]

Latitude = Annotated[float, Meta(ge=-90, le=90, description="a latitude, -90 to 90 degrees")]
Longitude = Annotated[float, Meta(ge=-180, le=180, description="a longitude, -180 to 180 degrees")]
_Axis = Annotated[float, Meta(ge=-1e9, le=1e9)]
Coordinates = Annotated[tuple[_Axis, ...], Meta(min_length=DIMENSIONS, max_length=DIMENSIONS)]
Centroid = Annotated[tuple[float, ...], Meta(min_length=DIMENSIONS, max_length=DIMENSIONS)]
"""Not a number where there are no clients."""
