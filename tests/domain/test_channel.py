"""Channels, their parameters and the keys of subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.domain.channel import ChannelSpec, Parameter, check_channel, check_values, subscription_key
from nearcast.domain.dataset import DatasetSpec, check_dataset
from nearcast.errors import InputError

CHANNEL = ChannelSpec(
    "c", "SELECT 1", (Parameter("kind", "string"), Parameter("least", "int"), Parameter("r", "double"))
)


def test_equal_values_have_one_key_whatever_their_order_and_notation() -> None:
    one = check_values(CHANNEL, {"kind": "fire", "least": 3, "r": 5})
    other = check_values(CHANNEL, {"r": 5.0, "least": 3, "kind": "fire"})
    assert subscription_key(one) == subscription_key(other)
    assert subscription_key(one) != subscription_key({**one, "least": 4})
    assert subscription_key(check_values(CHANNEL, {"kind": "", "least": 0, "r": -0.0})) == subscription_key(
        check_values(CHANNEL, {"kind": "", "least": 0, "r": 0})
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": 1, "least": 1, "r": 1}, "parameter kind is 1; string is needed"),
        ({"kind": "x", "least": 1.5, "r": 1}, "parameter least is 1.5; int is needed"),
        ({"kind": "x", "least": True, "r": 1}, "parameter least is True; int is needed"),
        ({"kind": "x", "least": 1 << 31, "r": 1}, "too large for int"),
        ({"kind": "x", "least": 1, "r": float("nan")}, "parameter r is nan; double is needed"),
        ({"kind": "x", "least": 1}, "parameter 'r' is missing"),
        ({"kind": "x", "least": 1, "r": 1, "z": 1}, "has no parameter 'z'"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_values(CHANNEL, values)


@pytest.mark.parametrize(
    ("channel", "words"),
    [
        (ChannelSpec("C", ""), "channel name 'C'"),
        (ChannelSpec("c", "", (Parameter("x", "text"),)), "type is 'text'; allowed: string, int"),
        (ChannelSpec("c", "", (Parameter("x", "int"), Parameter("x", "int"))), "is there twice"),
        (ChannelSpec("c", "", period=0), "period is 0"),
        (ChannelSpec("c", "", keep_seconds=-1), "keep is -1"),
    ],
)
def test_wrong_channels_are_refused(channel: ChannelSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_channel(channel)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (DatasetSpec("no-dash", ""), "dataset name 'no-dash'"),
        (DatasetSpec("d", "", "fed.e"), "source is 'fed.e'"),
        (DatasetSpec("d", "", "fed.d", keep_seconds=0), "keep_seconds is 0"),
        (DatasetSpec("d", "", key="x"), "is static"),
    ],
)
def test_wrong_datasets_are_refused(dataset: DatasetSpec, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_dataset(dataset)


def test_a_text_of_a_subscription_is_limited() -> None:
    """Each subscription is kept by stores and the data cluster, with its values."""
    channel = ChannelSpec("alerts", "SELECT", (Parameter("name", "string"),))
    assert check_values(channel, {"name": "x" * 4096})
    with pytest.raises(InputError, match="4097 characters; 4096 are allowed"):
        check_values(channel, {"name": "x" * 4097})
