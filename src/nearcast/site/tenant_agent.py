"""What a tenant has of a site: an agent with workers of its own, on a connection that sees its account only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.nats import subjects
from nearcast.nats.connection import Connection, open_connection
from nearcast.protocol.control import Notice
from nearcast.site.agent.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from nearcast.domain.deployment import Deployment
    from nearcast.domain.site import SiteSpec
    from nearcast.site.security import SiteSecurity

__all__ = ["TenantAgent"]

_START_LIMIT = 30.0
_TELL_LIMIT = 2


class TenantAgent:
    """Of one tenant at one site. folder: for its logs, spools, index and assignments.

    over_limit: users of a tenant of whom connections were closed, and how many. metrics: whether it serves the site's.
    """

    def __init__(
        self,
        deployment: Deployment,
        site: SiteSpec,
        security: SiteSecurity | None,
        folder: Path,
        search_path: Sequence[str],
        over_limit: Callable[[str], dict[str, int]],
        *,
        metrics: bool,
    ) -> None:
        self._deployment, self._site, self._security = deployment, site, security
        self._folder, self._search_path, self._over_limit, self._metrics = folder, search_path, over_limit, metrics
        self.tenant = security.tenant if security is not None else ""
        self.connection: Connection | None = None
        self.agent: Agent | None = None

    async def start(self) -> None:
        """Connect, and start the agent and its workers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        security = self._security
        self.connection = await open_connection(
            [self._site.url],
            name=f"{self._site.name}/agent",
            timeout=_START_LIMIT,
            credentials=security.credentials("site") if security is not None else None,
        )
        self.agent = Agent(
            self._deployment,
            self._site,
            self.connection,
            self._folder,
            self._search_path,
            str(security.credentials("worker").path) if security is not None else "",
            lambda: self._over_limit(self.tenant),
            metrics=self._metrics,
        )
        await self.agent.start()

    async def tell(self, user: str, reason: str, seconds: float) -> None:
        """Tell a client why its connections are closed, and for how long; returns when the broker has it."""
        if self.connection is not None:
            notice = msgspec.json.encode(Notice(reason, seconds))
            self.connection.send(subjects.client_notice(user), b"", notice)
            await self.connection.flush(_TELL_LIMIT)

    async def stop(self) -> None:
        """Stop the workers, then the agent."""
        if self.agent is not None:
            await self.agent.stop()
        if self.connection is not None:
            await self.connection.close()
