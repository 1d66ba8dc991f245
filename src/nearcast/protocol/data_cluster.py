"""What the data cluster is asked, and answers: its state, refused records, a query, trials of channels."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from nearcast.domain.channel import ChannelSpec
from nearcast.domain.dataset import DatasetSpec

__all__ = [
    "AdHocAnswer",
    "AdHocQuery",
    "ChannelCheck",
    "ChannelReplay",
    "ChannelTrial",
    "ColumnsCheck",
    "DataClusterState",
    "DatasetLoad",
    "DatasetState",
    "ProducerState",
    "QuarantineRequest",
    "QuarantinedRecord",
    "RecordFile",
    "ReplayAnswer",
]

MOST_ROWS = 1000
_Limit = Annotated[int, Meta(ge=1, le=MOST_ROWS)]
_Datasets = Annotated[list[DatasetSpec], Meta(max_length=10_000)]
_Text = Annotated[str, Meta(min_length=1, max_length=200)]
_YEAR_9999 = 253_402_300_799


class ProducerState(msgspec.Struct, frozen=True):
    """Counters since the driver started, of a dataset with its continuous channels, or of a scheduled channel.

    lag: messages of the stream that are not in the table yet. seconds: of the last batch. problem: why it does not run.
    """

    name: str
    rows: int
    refused: int
    results: int
    batches: int
    lag: int
    seconds: float
    problem: str


class DatasetState(msgspec.Struct, frozen=True):
    """What the table of a dataset has. written: when the last file was added, seconds since 1970; 0 for never."""

    name: str
    rows: int
    written: float
    quarantined: int


class DataClusterState(msgspec.Struct, frozen=True):
    """Of the driver. subscriptions: of each channel, those that are matched."""

    producers: list[ProducerState]
    datasets: list[DatasetState]
    subscriptions: dict[str, int]


class QuarantineRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records of a dataset that were refused, the newest first."""

    dataset: Annotated[str, Meta(min_length=1, max_length=200)]
    limit: _Limit = 100


class QuarantinedRecord(msgspec.Struct, frozen=True):
    """time: when it came to the stream, seconds since 1970. removed: messages that were gone before they were read."""

    sequence: int
    time: float
    id: str
    reason: str
    payload: str
    removed: int


class ChannelCheck(msgspec.Struct, frozen=True):
    """A channel, and the datasets of the catalog, which the data cluster may not know yet."""

    channel: ChannelSpec
    datasets: _Datasets


class ColumnsCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns, as DDL, that are to be added to a dataset; the answer is its schema with them."""

    dataset: DatasetSpec
    columns: Annotated[str, Meta(min_length=1, max_length=20_000)]


class RecordFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records of a dataset as a file has them. name: of the file; its ending says the format."""

    dataset: _Text
    name: _Text
    content: bytes


class DatasetLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a static dataset, for the version that it has, or past records of a stream; the answer is how many
    rows that are."""

    dataset: DatasetSpec
    file: RecordFile


class ChannelTrial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One subscription of a channel, tried on given records; the answer is its rows. Nothing is published."""

    channel: ChannelSpec
    datasets: _Datasets
    records: Annotated[list[RecordFile], Meta(max_length=100)]
    values: dict[str, Any]


class ChannelReplay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The results of a channel over the records since a time, in seconds since 1970, of the subscription with these
    values, or of all. publish: send them to the subscribers, too. limit: of the results in the answer."""

    channel: ChannelSpec
    datasets: _Datasets
    since: Annotated[float, Meta(ge=0, le=_YEAR_9999)]
    values: dict[str, Any] | None = None
    publish: bool = False
    limit: _Limit = 100


class ReplayAnswer(msgspec.Struct, frozen=True):
    """results: the first of them, as JSON. count: of all."""

    results: list[str]
    count: int


class AdHocQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One SELECT over datasets, by the rules of a channel's query, without parameters."""

    query: Annotated[str, Meta(min_length=1, max_length=20_000)]
    limit: _Limit = 100


class AdHocAnswer(msgspec.Struct, frozen=True):
    """Values as text. more: there are further rows."""

    columns: list[str]
    rows: list[list[str | None]]
    more: bool
    seconds: float
