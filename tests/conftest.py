"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Shared machines are slow at times: no deadline per example, and the same examples on every run.
settings.register_profile(
    "nearcast",
    deadline=None,
    max_examples=50,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("nearcast")
