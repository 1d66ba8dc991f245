"""A channel whose query was validated: what its statement is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.cluster.channels.statement_template import Statement
    from nearcast.domain.channel import ChannelSpec

__all__ = ["ValidatedChannel"]


@dataclass(frozen=True)
class ValidatedChannel:
    """A channel that can run. datasets: it reads. columns: the label of each column of its results, and its name in the
    statement. timeless: its plan may be evaluated again. like_parameters: those in patterns of LIKE. lookups: keyed
    datasets that it joins by key, each with the column of the new records that has the key."""

    spec: ChannelSpec
    statement: Statement
    datasets: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    timeless: bool
    like_parameters: Mapping[str, bool] = field(default_factory=dict)
    lookups: Mapping[str, str] = field(default_factory=dict)
