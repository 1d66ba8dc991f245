"""Receipts of notifications: a publication is finished when one store has each of them."""

from __future__ import annotations

from nearcast.site.worker.notification_receipts import NotificationReceipts


def test_an_item_is_finished_once_when_a_store_has_each_notification() -> None:
    receipts: NotificationReceipts[str] = NotificationReceipts("tokyo")
    one, two = receipts.expect("one", 2, 0.0), receipts.expect("two", 1, 0.0)
    assert receipts.stored(one, 0) is None
    assert receipts.stored(one, 0) is None  # by another store
    assert receipts.stored(two, 0) == "two"
    assert receipts.stored(one, 1) == "one"
    assert receipts.stored(one, 1) is None
    assert receipts.expire(100.0) == []


def test_what_no_store_acknowledges_is_not_finished() -> None:
    receipts: NotificationReceipts[str] = NotificationReceipts("tokyo")
    one, two = receipts.expect("one", 2, 0.0), receipts.expect("two", 1, 1.0)
    assert receipts.stored(one, 1) is None
    assert receipts.expire(4.9) == []
    assert receipts.expire(5.5) == ["one"]
    assert receipts.stored(one, 0) is None
    assert receipts.stored(two, 0) == "two"


def test_on_a_new_link_notifications_are_acknowledged_until_the_own_store_was_heard() -> None:
    receipts: NotificationReceipts[str] = NotificationReceipts("tokyo")
    assert receipts.needed(("tokyo", "osaka"), "first link")
    receipts.heard("osaka", "first link")
    assert receipts.needed(("tokyo", "osaka"), "first link")
    receipts.heard("tokyo", "first link")
    assert not receipts.needed(("tokyo", "osaka"), "first link")
    assert receipts.needed(("osaka", "cloud"), "first link")  # all stores are at other sites
    assert receipts.needed(("tokyo", "osaka"), "second link")
