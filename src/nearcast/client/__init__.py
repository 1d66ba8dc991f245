"""The SDK: connect, publish, subscribe, ask for history. It needs no site code and runs on devices."""

from nearcast.client.acknowledgements import QuorumError, Receipt
from nearcast.client.client import Client
from nearcast.client.client_factory import connect
from nearcast.client.history import History
from nearcast.client.quota import QuotaError
from nearcast.client.store_finder import HistoryError
from nearcast.client.subscription import SlowConsumerError, Subscription

__all__ = [
    "Client",
    "History",
    "HistoryError",
    "QuorumError",
    "QuotaError",
    "Receipt",
    "SlowConsumerError",
    "Subscription",
    "connect",
]
