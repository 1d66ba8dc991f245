"""Who has which channel subscriptions: limited for each client, and forgotten when nobody renews them."""

from __future__ import annotations

import pytest

from nearcast.errors import InputError
from nearcast.site.agent.renewals import Renewals


def test_a_client_has_a_limited_number_and_the_others_are_not_affected() -> None:
    renewals = Renewals(most=3)
    for n in range(3):
        renewals.renew(f"alerts.{n}", "car7", 0.0)
    renewals.renew("alerts.0", "car7", 1.0)
    with pytest.raises(InputError, match=r"client car7 has 3 channel subscriptions .* leave some first"):
        renewals.renew("alerts.3", "car7", 1.0)
    assert "alerts.3" not in renewals
    renewals.renew("alerts.3", "car8", 1.0)
    assert not renewals.leave("alerts.9", "car7"), "it is not known"
    assert renewals.leave("alerts.2", "car7"), "nobody else has it"
    renewals.renew("alerts.3", "car7", 1.0)
    assert renewals.count("car7") == 3


def test_what_is_not_renewed_is_forgotten_and_no_longer_counted() -> None:
    renewals = Renewals(most=2)
    renewals.adopt("alerts.1", 0.0)
    renewals.renew("alerts.1", "car7", 5.0)
    renewals.renew("alerts.2", "car7", 0.0)
    renewals.renew("alerts.2", "car8", 0.0)
    assert renewals.expire(1.0) == ["alerts.2"]
    assert (renewals.count("car7"), renewals.count("car8")) == (1, 0)
    assert renewals.expire(6.0) == ["alerts.1"]
    assert not renewals
    renewals.renew("alerts.1", "car7", 7.0)
    renewals.forget("alerts.1")
    assert (renewals.count("car7"), "alerts.1" in renewals) == (0, False)
