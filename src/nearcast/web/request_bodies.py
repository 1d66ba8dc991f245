"""What requests to REST have: their bodies, and the user who sent them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from nearcast.domain.times import time_of
from nearcast.web.users import ConsoleUser, current_user

__all__ = [
    "Approval", "Body", "Channel", "Columns", "Dataset", "FedRecords", "Letters", "Limit", "MessageId", "Name",
    "Publication", "Records", "Replay", "Row", "SqlQuery", "StoryAnnouncement", "Target", "Time", "Topic", "Trial",
    "User",
]  # fmt: skip


def _seconds_of(value: Any) -> Any:
    """A text that is not a number: a time or a span, as the command line takes them."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        when = time_of(value)
    if when is None:
        raise ValueError("allowed: seconds since 1970, a time such as 2026-05-01T12:00Z, a span such as 15m")
    return when.timestamp()


Row = dict[str, Any]
Name = Annotated[str, Path(min_length=1, max_length=200)]
MessageId = Annotated[str, Path(min_length=1, max_length=1000)]
User = Annotated[ConsoleUser, Depends(current_user)]
_TimeOrSpan = BeforeValidator(_seconds_of, json_schema_input_type=float | str)
Time = Annotated[
    Annotated[float, Field(ge=0, le=9_000_000_000, allow_inf_nan=False), _TimeOrSpan] | None,
    Query(description="Seconds since 1970, a time (ISO 8601), or a span such as 15m, 2h, 3d."),
]
Limit = Annotated[int | None, Query(ge=1, le=1_000_000, description="End after so many.")]
_Seconds = Annotated[float, Field(gt=0, le=9_000_000_000, allow_inf_nan=False)]


class Body(BaseModel):
    """A request; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class Target(Body):
    """Where to."""

    to: list[Annotated[str, Field(max_length=200)]] = Field(min_length=1, max_length=100)


class Topic(Body):
    """A topic, as in nearcast.toml."""

    name: str = Field(min_length=1, max_length=200)
    managed_by: list[str] = []
    replicas: list[str] = []
    quorum: int = Field(default=0, ge=0, le=1000)
    bound_ms: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep_seconds: float | None = Field(default=None, gt=0, le=9_000_000_000, allow_inf_nan=False)
    keep_bytes: int | None = Field(default=None, ge=1, le=1 << 60)
    catch_up: Literal["oldest", "newest"] = "oldest"
    ordered: bool = False
    max_attempts: int = Field(default=5, ge=1, le=1_000_000)
    max_topics: int | None = Field(default=None, ge=1, le=1_000_000)


class Approval(Body):
    """The moves of a plan that are to be executed, by their places in it; all for null."""

    moves: list[Annotated[int, Field(ge=0, le=1_000_000)]] | None = Field(default=None, max_length=10_000)


class Letters(Body):
    """Dead letters of a topic or pattern by their ids. force: also those that had all their attempts."""

    topic: str = Field(min_length=1, max_length=200)
    ids: list[str] = Field(min_length=1, max_length=10_000)
    force: bool = False


class SqlQuery(Body):
    """One SELECT over datasets, without parameters."""

    query: str = Field(min_length=1, max_length=20_000)
    limit: int = Field(default=100, ge=1, le=1000)


class StoryAnnouncement(Body):
    """What all who look at the console are told; nothing for an empty text."""

    text: str = Field(max_length=300)


class Dataset(Body):
    """A dataset. schema: its columns as DDL. source: `fed.<name>` or `pub.<topic>`; without one it is static."""

    name: str = Field(min_length=1, max_length=200)
    ddl: str = Field(alias="schema", min_length=1, max_length=20_000)
    source: str = Field(default="", max_length=300)
    key: str = Field(default="", max_length=200)
    time: str = Field(default="", max_length=200)
    keep_seconds: _Seconds | None = None
    late_after: _Seconds | None = None
    future_limit: _Seconds | None = None


class Columns(Body):
    """Columns to add to a dataset, as DDL such as `note STRING`; older records have null."""

    columns: str = Field(min_length=1, max_length=20_000)


class Records(Body):
    """The content of a static dataset, or past records of a stream: at most one message of NATS, a megabyte unless set
    otherwise."""

    records: list[dict[str, Any]] = Field(max_length=100_000)


class Publication(Body):
    """data: any JSON, sent as that. quorum: stores that must have it; the topic's own for null."""

    data: Any
    quorum: int | None = Field(default=None, ge=0, le=1000)


class FedRecords(Body):
    """Records for a dataset, each a message of its own."""

    records: list[dict[str, Any]] = Field(min_length=1, max_length=10_000)


class ChannelParameter(Body):
    """A parameter, written `:name` in the query."""

    name: str = Field(min_length=1, max_length=200)
    type: str = Field(min_length=1, max_length=20)


class Channel(Body):
    """A channel. period: seconds between executions; null for one that answers as records come. new: the dataset whose
    records each execution sees once; of a continuous channel the first stream of its query by default."""

    name: str = Field(min_length=1, max_length=200)
    query: str = Field(min_length=1, max_length=20_000)
    parameters: list[ChannelParameter] = Field(default=[], max_length=100)
    period: _Seconds | None = None
    new: str = Field(default="", max_length=200)
    keep_seconds: _Seconds = 3600.0


class Trial(Body):
    """Records by dataset, and the values of one subscription."""

    records: dict[str, Annotated[list[dict[str, Any]], Field(max_length=100_000)]] = Field(default={}, max_length=100)
    values: dict[str, Any] = Field(default={}, max_length=100)


class Replay(Body):
    """since: seconds since 1970, a time (ISO 8601) or a span such as 2h.

    values: of one subscription; of all for null. publish: to the subscribers, too.
    """

    since: Annotated[float, Field(ge=0, le=250_000_000_000, allow_inf_nan=False), _TimeOrSpan]
    values: dict[str, Any] | None = Field(default=None, max_length=100)
    publish: bool = False
    limit: int = Field(default=100, ge=1, le=1000)
