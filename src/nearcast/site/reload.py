"""Running servers take new certificates and changed accounts without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING

from nearcast.nats.identity.credentials import write_secret
from nearcast.nats.tasks import cancel_and_wait, repeat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nearcast.site.security import SiteSecurity
    from nearcast.site.supervisor import SupervisedProcess

__all__ = ["SecurityReload"]

_log = logging.getLogger(__name__)
_PERIOD = 1.0


class SecurityReload:
    """Watches the files of a site's security, and has its servers read them again when they change.

    accounts: the folder in which the broker keeps what it was told of tenants; the store learns of it from here.
    store_config: makes the store's configuration again.
    """

    def __init__(
        self,
        security: SiteSecurity,
        accounts: Path,
        broker: SupervisedProcess,
        store: SupervisedProcess | None,
        store_file: Path,
        store_config: Callable[[], str],
    ) -> None:
        self._security, self._accounts = security, accounts
        self._broker, self._store, self._store_file, self._store_config = broker, store, store_file, store_config
        self._before = self._state()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch from now on."""
        watch = repeat(self._look, _PERIOD, f"{self._security.site}: certificates and accounts were not read again")
        self._task = asyncio.create_task(watch, name=f"{self._security.site}: reload of certificates")

    async def stop(self) -> None:
        """Watch no more."""
        await cancel_and_wait(self._task)

    async def _look(self) -> None:
        if self._state() != self._before:
            await asyncio.sleep(_PERIOD)  # whoever writes them may not be done
            self._before = self._state()
            self._reload()

    def _state(self) -> list[tuple[str, int, int]]:
        tls = self._security.tls
        files = [tls.certificate, tls.key, tls.ca] if tls is not None else []
        files += sorted((self._security.folder.path / "accounts").glob("*.jwt")) + sorted(self._accounts.glob("*.jwt"))
        found = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                about = file.stat()
                found.append((str(file), about.st_mtime_ns, about.st_size))
        return found

    def _reload(self) -> None:
        if self._store is not None:
            write_secret(self._store_file, self._store_config())
        for server in (self._broker, self._store):
            if server is not None and server.pid is not None:
                os.kill(server.pid, signal.SIGHUP)
        _log.info("site %s: certificates and accounts were read again", self._security.site)
