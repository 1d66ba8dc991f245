"""Subjects: what stands behind a request for the past lets a broker judge it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nearcast.domain.topic import covers, overlaps
from nearcast.nats import subjects

_LEVEL = st.sampled_from(["gps", "car7", "*"])
_PATTERN = st.builds(
    lambda levels, rest: ".".join([*levels, *rest]) or ">",
    st.lists(_LEVEL, max_size=3),
    st.sampled_from([[], [">"]]),
)


@given(_PATTERN, _PATTERN)
def test_a_scope_is_within_a_grant_exactly_when_the_grant_covers_what_is_asked_for(granted: str, asked: str) -> None:
    scope = subjects.history_scope(asked)
    allowed = any(overlaps(pattern, scope) for pattern in subjects.history_scopes(granted))
    assert allowed == covers(granted, asked)


def test_results_of_a_channel_have_a_scope_of_their_own() -> None:
    assert subjects.history_scope("alerts.k7", results=True) == "c.alerts"


def test_the_owner_of_an_inbox_is_known_also_behind_a_gateway() -> None:
    """Else the audit log has nobody for what was asked at another site."""
    assert subjects.inbox_owner("_INBOX.car7.abc.1") == "car7"
    assert subjects.inbox_owner("_GR_.MvNWRHmE.XATzSZ3E._INBOX.car7.abc.1") == "car7"
    for reply in ("", "ans.car7.1", "_INBOX.car7", "pub._INBOX.car7.1", "_GR_.a._INBOX.car7.1"):
        assert subjects.inbox_owner(reply) == ""
