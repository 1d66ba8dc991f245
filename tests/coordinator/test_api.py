"""The coordinator's service: what it takes from clients, and what the audit log says of what it did."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from nearcast.coordinator.api import CoordinatorApi
from nearcast.coordinator.queries import NameRequest
from nearcast.errors import InputError, NearcastError
from nearcast.nats.audit import AuditEntry
from nearcast.protocol.registration import ClientRecord, SiteInfo
from nearcast.protocol.reports import MOST_CLIENTS


class KeptNotes:
    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    async def note(self, who: str, action: str, what: str, outcome: str = "done") -> None:
        self.entries.append(AuditEntry(0.0, who, action, what, outcome))


def api(**parts: Any) -> CoordinatorApi:
    names = ("registry", "monitor", "homes", "executor", "control_loop", "term", "settings", "audit")
    return CoordinatorApi("a", *(parts.get(name, SimpleNamespace()) for name in names))


async def test_no_more_clients_register_than_a_coordinator_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an entry of the coordinators' state, and of the memory of each that leads."""
    clients: dict[str, object] = dict.fromkeys(map(str, range(MOST_CLIENTS)))
    service = api(registry=SimpleNamespace(clients=clients, sites={}), monitor=SimpleNamespace(reports={}))
    monkeypatch.setattr(service._queries, "alive", lambda: {"tokyo"})
    with pytest.raises(NearcastError, match="100000 clients are registered, and no more are taken"):
        await service._register_client(ClientRecord("another"))


@pytest.mark.parametrize(
    ("error", "outcome"), [(InputError("no"), "refused: no"), (KeyError("unforeseen"), "failed"), (None, "done")]
)
async def test_the_audit_log_says_what_came_of_a_request(error: Exception | None, outcome: str) -> None:
    """What failed for a reason that nobody foresaw was noted as done."""
    notes = KeptNotes()

    async def apply_plan() -> dict[str, Any]:
        if error is not None:
            raise error
        return {}

    service = api(audit=notes, control_loop=SimpleNamespace(apply_plan=apply_plan))
    (endpoint,) = (one for one in service.endpoints() if one.name == "plan-apply")
    with contextlib.suppress(InputError, KeyError):
        await endpoint.handler(SimpleNamespace(name=""))
    assert [(entry.action, entry.outcome) for entry in notes.entries] == [("plan apply", outcome)]


@pytest.mark.parametrize(
    ("reported", "lost", "state"),
    [(None, False, "unknown"), (True, False, "up"), (False, False, "down"), (True, True, "unknown")],
)
async def test_the_store_of_a_lost_site_is_not_known_to_be_up(reported: bool | None, lost: bool, state: str) -> None:
    """It was what the last report had said."""
    sites = {"tokyo": SiteInfo("tokyo", "nats://127.0.0.1:4222", "127.0.0.1", 4222, store=True)}
    registry = SimpleNamespace(sites=sites, site=sites.__getitem__, topics={}, clients={})
    report = SimpleNamespace(store=reported, broker=None, workers=[])
    reports = {} if reported is None else {"tokyo": report}
    monitor = SimpleNamespace(reports=reports, lost=lambda now: {"tokyo"} if lost else set())
    (row,) = await api(registry=registry, monitor=monitor)._queries.sites(NameRequest())
    assert (row["state"], row["store_state"]) == ("lost" if lost else "up", state)
