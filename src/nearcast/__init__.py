"""Nearcast: publish, process and subscribe at the edge."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearcast.client import Client, HistoryError, QuorumError, Receipt, SlowConsumerError, Subscription, connect
    from nearcast.domain.topic import TopicError
    from nearcast.errors import InputError, NearcastError
    from nearcast.filters import field
    from nearcast.message import Message, PayloadError
    from nearcast.nats.connection import ConnectionLostError, PayloadTooLargeError
    from nearcast.processors import SpoolView, processor

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
    "nearcast.errors": ("InputError", "NearcastError"),
    "nearcast.domain.topic": ("TopicError",),
    "nearcast.processors": ("SpoolView", "processor"),
    "nearcast.nats.connection": ("ConnectionLostError", "PayloadTooLargeError"),
    "nearcast.message": ("Message", "PayloadError"),
    "nearcast.filters": ("field",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'nearcast' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
