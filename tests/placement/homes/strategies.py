"""Small made-up instances: any roles, any weights, limits that bind, delays that need not be a plane's."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from nearcast.placement.homes import HomesProblem


@st.composite
def instances(draw: st.DrawFn, clients: int = 6, sites: int = 3, topics: int = 3) -> HomesProblem:
    m, n_sites, n = draw(st.integers(1, clients)), draw(st.integers(1, sites)), draw(st.integers(1, topics))

    def table(rows: int, columns: int, largest: int) -> np.ndarray:
        row = st.lists(st.integers(0, largest), min_size=columns, max_size=columns)
        return np.array(draw(st.lists(row, min_size=rows, max_size=rows)), dtype=float)

    between = table(n_sites, n_sites, 20) / 10
    np.fill_diagonal(between, 0.0)
    return HomesProblem(
        client_site_ms=table(m, n_sites, 30) / 10,
        site_site_ms=between,
        cloud_ms=draw(st.integers(0, 10)) / 2,
        storage=table(1, n_sites, 12)[0],
        compute=table(1, n_sites, 25)[0],
        spool_size=table(1, n, 6)[0],
        publications=table(n, m, 2),
        subscriptions=table(n, m, 2),
    )
