"""Nearcast: publish, process and subscribe at the edge."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearcast.client import Client, HistoryError, QuorumError, Receipt, SlowConsumerError, Subscription, connect
    from nearcast.domain.errors import InputError, NearcastError
    from nearcast.domain.topic import TopicError
    from nearcast.site.processor import SpoolView, processor
    from nearcast.wire.connection import ConnectionLostError, PayloadTooLargeError
    from nearcast.wire.message import Message, PayloadError
    from nearcast.wire.predicate import field

__all__ = [
    "Client",
    "ConnectionLostError",
    "HistoryError",
    "InputError",
    "Message",
    "NearcastError",
    "PayloadError",
    "PayloadTooLargeError",
    "QuorumError",
    "Receipt",
    "SlowConsumerError",
    "SpoolView",
    "Subscription",
    "TopicError",
    "connect",
    "field",
    "processor",
]

# Where each public name lives. They are loaded when first used: a process that only runs a processor does not pay
# for the network client.
_HOMES = {
    "nearcast.client": (
        "Client", "HistoryError", "QuorumError", "Receipt", "SlowConsumerError", "Subscription", "connect",
    ),
    "nearcast.domain.errors": ("InputError", "NearcastError"),
    "nearcast.domain.topic": ("TopicError",),
    "nearcast.site.processor": ("SpoolView", "processor"),
    "nearcast.wire.connection": ("ConnectionLostError", "PayloadTooLargeError"),
    "nearcast.wire.message": ("Message", "PayloadError"),
    "nearcast.wire.predicate": ("field",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'nearcast' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
