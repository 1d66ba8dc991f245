"""The console's own metrics: requests by route, open event streams, and whether the state it shows is fresh."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nearcast.metrics import process_registry

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from nearcast.web.live import Live

__all__ = ["WebMetrics", "add_metrics"]


class WebMetrics:
    """Counts of one console. Routes are labels, never what a request filled them with.

    own: without those of the process, which `registry` has, too.
    """

    def __init__(self, live: Live) -> None:
        self.own = registry = CollectorRegistry()
        self.registry = process_registry()
        self.registry.register(registry)
        self.requests = Counter(
            "nearcast_web_requests", "Answered requests.", ["method", "route", "status"], registry=registry
        )
        self.latency = Histogram(
            "nearcast_web_request_seconds", "Request to the start of its answer.", ["method", "route"],
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60), registry=registry,
        )  # fmt: skip
        self.streams = Gauge("nearcast_web_event_streams", "Open streams of server-sent events.", registry=registry)
        up = Gauge("nearcast_web_coordinator_up", "Whether a coordinator answered the last time.", registry=registry)
        up.set_function(lambda: float(not live.now.problem))


class _Counting:
    """ASGI middleware that counts what is answered."""

    def __init__(self, app: ASGIApp, metrics: WebMetrics, clock: Callable[[], float] = time.perf_counter) -> None:
        self._app, self._metrics, self._clock = app, metrics, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = self._clock()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Set by the router; what matched nothing has no route.
                route = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if route != "none" else "any"  # clients may make methods up
                self._metrics.requests.labels(method, route, str(message["status"])).inc()
                self._metrics.latency.labels(method, route).observe(self._clock() - began)
            await send(message)

        await self._app(scope, receive, counted)


def add_metrics(app: FastAPI, metrics: WebMetrics) -> None:
    """Serve `/metrics` and count requests."""
    app.add_middleware(_Counting, metrics=metrics)

    @app.get("/metrics", include_in_schema=False)
    async def serve_metrics(request: Request) -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})
