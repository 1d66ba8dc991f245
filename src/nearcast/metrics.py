"""Metrics for Prometheus: a server per process, and a collector that asks an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Info, start_http_server
from prometheus_client.core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from nearcast.errors import InputError

__all__ = ["LoopCollector", "MetricsServer", "listen_near", "process_registry"]

_COLLECT_LIMIT = 5.0
_TRIED_PORTS = 10


class LoopCollector(Collector):
    """Metrics of parts that live in an event loop: made there, served by the thread of the metrics server."""

    def __init__(self, metrics: Callable[[], Awaitable[Iterable[Metric]]]) -> None:
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()

    def collect(self) -> Iterable[Metric]:
        """Called by the server for each scrape; a loop that does not answer fails the scrape."""

        async def made() -> list[Metric]:
            return list(await self._metrics())

        return asyncio.run_coroutine_threadsafe(made(), self._loop).result(_COLLECT_LIMIT)


def process_registry() -> CollectorRegistry:
    """What each process serves besides its own metrics: memory, CPU time, open files, and the version."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    Info("nearcast_build", "The version of Nearcast.", registry=registry).info({"version": version("nearcast")})
    return registry


class MetricsServer:
    """Serves `/metrics` in a thread of its own until `stop`: the collector's, the process's and the version."""

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        registry = process_registry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise InputError(f"metrics cannot be served on {host}:{port}: {error.strerror}") from None
        self.host, self.port = host, int(self._server.server_port)

    @property
    def url(self) -> str:
        """What Prometheus scrapes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def stop(self) -> None:
        """Close the port. Not in the event loop that a collector asks: a scrape may be waiting for it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    async def stop_from_loop(self) -> None:
        """`stop`, while the event loop still answers."""
        await asyncio.to_thread(self.stop)


def listen_near(collector: Collector, address: str, default: str) -> MetricsServer:
    """Serve at HOST:PORT. The default address only says where to begin: another process may have that port already."""
    if address:
        return MetricsServer(collector, *_parse(address))
    host, first = _parse(default)
    for port in range(first, first + _TRIED_PORTS):
        try:
            return MetricsServer(collector, host, port)
        except InputError:
            continue
    return MetricsServer(collector, host, 0)


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InputError(f"the address for metrics is {address!r}; allowed: HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)
