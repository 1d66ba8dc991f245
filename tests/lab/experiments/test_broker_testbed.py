"""The testbed of the balancing experiments: real brokers count what the load model says, and moves level it."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.lab.experiments.broker_testbed import BrokerTestbed, brokers, run_policy


def test_brokers_count_what_the_model_says_and_a_move_levels_them() -> None:
    bed = BrokerTestbed(users=30, duration_s=360.0, seed=1)

    async def run() -> list[dict[str, object]]:
        async with brokers() as sites:
            return [dict(row) for row in await run_policy(bed, sites, bed.nearest, "ldm", speed=1000.0)]

    first, *_, last = asyncio.run(run())
    assert first["max_load"] == pytest.approx(first["computed_max"], rel=0.2)
    assert last["max_load"] == pytest.approx(last["computed_max"], rel=0.2)
    assert first["moves"] == 0
    assert float(str(last["moves"])) > 0
    assert float(str(last["cov"])) < 0.7 * float(str(first["cov"]))
