"""What a user was given by name."""

from __future__ import annotations

from dataclasses import dataclass

from nearcast.domain.names import check_identifier
from nearcast.domain.topic import check_pattern, publisher_level
from nearcast.errors import InputError

__all__ = ["NO_GRANTS", "Grants"]


@dataclass(frozen=True)
class Grants:
    """What a user was given by name: patterns of topics, channels, and datasets that it may feed."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()

    def check(self, user: str) -> Grants:
        """Itself, if every pattern is one, and none is of another publisher (`gps.@car7`)."""
        for pattern in (*self.publish, *self.subscribe):
            check_pattern(pattern)
        for pattern in self.publish:
            if publisher_level(pattern) not in ("", user):
                raise InputError(
                    f"{user} is to publish to {pattern!r}, which is another publisher's; allowed: a level @{user}"
                )
        for name in (*self.channels, *self.feeds):
            if name != "*":
                check_identifier(name, "channel or dataset")
        return self


NO_GRANTS = Grants()
