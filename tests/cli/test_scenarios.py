"""Which policies `nearcast lab run` runs."""

from __future__ import annotations

import pytest

from nearcast.cli.scenarios import _chosen
from nearcast.errors import InputError
from nearcast.lab.scenarios import policies


def test_policies_are_run_in_one_order_whatever_the_order_they_are_given_in() -> None:
    assert _chosen("hash, fixed,nearcast") == ["nearcast", "fixed", "hash"]


def test_an_unknown_policy_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(InputError, match=r"'best' is none; allowed: all, nearcast, oracle, paper, fixed, hash"):
        _chosen("nearcast,best")


def test_a_policy_this_version_cannot_run_is_left_out_and_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(policies, "missing", lambda policy: "paper is not there" if policy == "paper" else None)
    assert _chosen("all") == ["nearcast", "oracle", "fixed", "hash"]
    assert "Left out: paper is not there." in capsys.readouterr().err
    with pytest.raises(InputError, match="none of those can be run"):
        _chosen("paper")
