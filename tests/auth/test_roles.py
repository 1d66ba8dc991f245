"""What roles may do, by their grants."""

from __future__ import annotations

from nearcast.auth.roles import Grants, permissions
from nearcast.domain.topic import covers
from nearcast.nats import subjects


def may_ask(grants: Grants, verb: str) -> bool:
    asked = subjects.channels_service("edge", verb)
    return any(covers(pattern, asked) for pattern in permissions("device", "car7", grants).publish)


def test_who_was_given_no_channel_makes_no_work_for_the_data_cluster() -> None:
    """Any device could have 10,000 subscriptions of any channel evaluated at each site."""
    of_channels = ("confirm", "subscribe.car7", "renew.car7", "leave.car7")
    for verb in of_channels:
        assert not may_ask(Grants(("gps.car7",), ("gps.car7",), feeds=("reports",)), verb)
        assert may_ask(Grants(channels=("alerts",)), verb)
    assert may_ask(Grants(feeds=("reports",)), "dataset")
    assert not may_ask(Grants(("gps.car7",), channels=("alerts",)), "dataset")
