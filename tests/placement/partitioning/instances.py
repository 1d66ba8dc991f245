"""Small instances for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from tests.placement.partitioning.literal import Instance

from nearcast.placement.partitioning import PartitionClients, PartitionSites


def build(seed: int, topics: int, sites: int, fill: float, resources: bool) -> Instance:
    """Topics around random places, at random sites; `fill` is the rate of all over the limits of all."""
    generator = np.random.default_rng(seed)
    per_topic = generator.integers(0, 6, topics)
    topic = generator.permutation(np.repeat(np.arange(topics), per_topic))
    role = generator.integers(0, 3, len(topic))
    place = generator.normal(0, 30, (topics, 3))
    clients = PartitionClients(
        topic=topic,
        produces=role != 1,
        consumes=role != 0,
        position=place[topic] + generator.normal(0, 8, (len(topic), 3)),
        height=generator.uniform(0, 5, len(topic)),
    )
    # Whole rates add up exactly, in whatever order the literal and the vectorised version do it.
    rate = generator.integers(0, 20, topics).astype(float)
    share = generator.dirichlet(np.full(sites, 5.0))
    limit = np.ceil(share * rate.sum() / fill)
    used = generator.uniform(0, 1.1, (sites, 2)) if resources else np.empty((0, 0))
    where = PartitionSites(generator.normal(0, 30, (sites, 3)), generator.uniform(0, 3, sites), limit, utilisation=used)
    bound = generator.uniform(60, 200, topics)
    return Instance(clients, where, generator.integers(0, sites, topics), bound, rate)


def instances(max_topics: int = 12) -> st.SearchStrategy[Instance]:
    """Loose and tight, with and without known use of resources."""
    return st.builds(
        build,
        seed=st.integers(0, 2**32 - 1),
        topics=st.integers(1, max_topics),
        sites=st.integers(1, 5),
        fill=st.sampled_from([0.3, 0.7, 0.9, 1.2]),
        resources=st.booleans(),
    )
