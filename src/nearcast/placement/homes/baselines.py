"""The methods the paper compares with: random (RA), nearest (NS) and one topic, one site (OTOS)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nearcast.placement.homes.delay import HomesPlan, evaluate
from nearcast.placement.homes.in_order import Ledger, place_in_order

if TYPE_CHECKING:
    from nearcast.placement.homes.instance import HomesInstance

__all__ = ["nearest", "one_topic_one_site", "random"]


def random(instance: HomesInstance, seed: int = 0) -> HomesPlan:
    """RA: any site, with equal chances."""
    return evaluate(instance, np.random.default_rng(seed).integers(instance.sites, size=instance.clients))


def nearest(instance: HomesInstance) -> HomesPlan:
    """NS: the site with the smallest d^H: the smallest Y1 there is, and the first to overflow."""
    return evaluate(instance, instance.client_site_ms.argmin(axis=1))


def one_topic_one_site(instance: HomesInstance) -> HomesPlan:
    """OTOS: the clients of a topic share one site, so its spool is held once.

    The paper leaves the site open: here it is the one nearest to the topic's members in sum among those the
    topic still fits, or the least used one when it fits nowhere. A client of several topics stays where its
    first topic is; cooperation, over all sites, moves clients of overfull ones.
    """
    members, publications = instance.members, instance.publications
    sum_ms = members @ instance.client_site_ms
    nearest_first = np.argsort(sum_ms, axis=1, kind="stable")
    publishers = np.diff(publications.indptr)
    site_of_topic = np.full(instance.topics, -1)

    def choose(topic: int, client: int, home: list[int], ledger: Ledger) -> int:
        if site_of_topic[topic] < 0:
            size = instance.spool_size[topic] if publishers[topic] else 0.0
            storage = np.asarray(ledger.storage) + size <= instance.storage
            compute = np.asarray(ledger.compute) + size * publishers[topic] <= instance.compute
            fitting = (storage & compute)[nearest_first[topic]]
            site_of_topic[topic] = (
                nearest_first[topic][fitting.argmax()] if fitting.any() else int(np.argmin(ledger.usage))
            )
        return int(site_of_topic[topic])

    everywhere = [range(instance.sites)] * instance.sites
    home = place_in_order(instance, choose, everywhere)
    return evaluate(instance, np.where(home < 0, instance.client_site_ms.argmin(axis=1), home))
