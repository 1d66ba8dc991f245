"""A channel whose query was validated: what its statement is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.cluster.channels.rewrite import Statement
    from nearcast.domain.channel import ChannelSpec

__all__ = ["ValidatedChannel"]


@dataclass(frozen=True)
class ValidatedChannel:
    """A channel that can run. datasets: it reads. columns: the label of each column of its results, and its name in the
    statement. timeless: its plan may be evaluated again."""

    spec: ChannelSpec
    statement: Statement
    datasets: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    timeless: bool
