"""Nearcast: publish, process and subscribe at the edge."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nearcast import sync
    from nearcast.client import (
        Client,
        History,
        HistoryError,
        QuorumError,
        QuotaError,
        Receipt,
        SlowConsumerError,
        Subscription,
        connect,
    )
    from nearcast.codec import Codec
    from nearcast.coordinates import Coordinate
    from nearcast.domain.topic import TopicError
    from nearcast.errors import InputError, InputTypeError, NearcastError
    from nearcast.filters import Condition, field
    from nearcast.message import Message, PayloadError
    from nearcast.nats.connection import ConnectionLostError, PayloadTooLargeError
    from nearcast.nats.coordinator_rpc import CoordinatorError
    from nearcast.nats.refusals import RefusedError
    from nearcast.processors import ProcessorError, SpoolView, processor

__all__ = [
    "Client",
    "Codec",
    "Condition",
    "ConnectionLostError",
    "Coordinate",
    "CoordinatorError",
    "History",
    "HistoryError",
    "InputError",
    "InputTypeError",
    "Message",
    "NearcastError",
    "PayloadError",
    "PayloadTooLargeError",
    "ProcessorError",
    "QuorumError",
    "QuotaError",
    "Receipt",
    "RefusedError",
    "SlowConsumerError",
    "SpoolView",
    "Subscription",
    "TopicError",
    "connect",
    "field",
    "processor",
    "sync",
]

# Where each public name lives. They are loaded when first used: a process that only runs a processor does not pay
# for the network client.
_HOMES = {
    "nearcast.client": (
        "Client", "History", "HistoryError", "QuorumError", "QuotaError", "Receipt", "SlowConsumerError",
        "Subscription", "connect",
    ),
    "nearcast.codec": ("Codec",),
    "nearcast.coordinates": ("Coordinate",),
    "nearcast.domain.topic": ("TopicError",),
    "nearcast.errors": ("InputError", "InputTypeError", "NearcastError"),
    "nearcast.filters": ("Condition", "field"),
    "nearcast.message": ("Message", "PayloadError"),
    "nearcast.nats.connection": ("ConnectionLostError", "PayloadTooLargeError"),
    "nearcast.nats.coordinator_rpc": ("CoordinatorError",),
    "nearcast.nats.refusals": ("RefusedError",),
    "nearcast.processors": ("ProcessorError", "SpoolView", "processor"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = ("sync",)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"nearcast.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'nearcast' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
