"""The subscription tables that follow from changes of the catalog."""

from __future__ import annotations

from nearcast.cluster.channels.subscribers import Subscribers


def test_equal_subscriptions_of_sites_are_one_row_until_the_last_leaves() -> None:
    table = Subscribers()
    assert table.apply([("c.k1.tokyo", b'{"x":1}'), ("c.k1.osaka", b'{"x":1}'), ("d.k2.tokyo", b"{}")], 0) == {
        "c": {"k1"},
        "d": {"k2"},
    }
    assert table.rows("c") == {"k1": {"x": 1}}
    assert table.apply([("c.k1.tokyo", None)], 1) == {}
    assert table.rows("c") == {"k1": {"x": 1}}
    assert table.apply([("c.k1.osaka", None)], 1) == {"c": {"k1"}}
    assert table.rows("c") == {}


def test_the_rows_of_a_site_with_an_expired_lease_are_suspended_until_it_renews() -> None:
    table = Subscribers()
    table.apply([("c.k1.tokyo", b"{}"), ("c.k1.osaka", b"{}"), ("c.k2.tokyo", b"{}")], 0)
    for second in range(1, 29):
        assert table.apply([], second) == {}
    assert table.apply([("lease.osaka", b"")], 29) == {}
    assert table.apply([("lease.osaka", b"")], 31) == {"c": {"k2"}}, "another site holds k1, too"
    assert set(table.rows("c")) == {"k1"}
    assert (table.row("c", "k1"), table.row("c", "k2")) == ({}, None)
    assert table.apply([("lease.tokyo", b"")], 35) == {"c": {"k2"}}
    assert set(table.rows("c")) == {"k1", "k2"}


def test_no_lease_expires_while_the_catalog_cannot_be_read() -> None:
    """The store was away for minutes: when it is back, its catalog is read before any site can renew."""
    table = Subscribers()
    table.apply([("c.k1.tokyo", b"{}")], 0)
    assert table.apply([], 300) == {}
    assert set(table.rows("c")) == {"k1"}
    for second in range(301, 325):
        assert table.apply([], second) == {}
    assert table.apply([], 329) == {"c": {"k1"}}, "it does not renew, though it could"
