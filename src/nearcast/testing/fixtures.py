"""Pytest fixtures: import them in your `conftest.py`.

from nearcast.testing.fixtures import nearcast_sites
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from nearcast.testing.running_sites import RunningSites, sites

__all__ = ["nearcast_sites"]


@pytest.fixture
def nearcast_sites(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[RunningSites]]:
    """`async with nearcast_sites(TopicSpec(...), ...) as running`: as `sites`, with its files in `tmp_path`."""
    return partial(sites, folder=tmp_path)
