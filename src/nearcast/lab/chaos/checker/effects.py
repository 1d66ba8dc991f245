"""Whether faults did what they say: a run whose faults broke nothing proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

from nearcast.lab.chaos.checker.evidence import Event, Ledger, PublishedMessage

__all__ = ["ineffective_faults"]

_GRACE = 1.0  # s after a fault began: what was under way is still noted


def ineffective_faults(ledger: Ledger) -> Iterator[str]:
    """Sites that processed, and devices that published, while they were down."""
    for number, fault in enumerate(ledger.faults()):
        what = f"fault {number + 1} ({fault['kind']} {' '.join(fault['target'])})"
        if fault["kind"] in ("kill site", "stop site"):
            times = [event["at"] for event in _processed_at(ledger, fault["target"][0])]
        elif fault["kind"] == "kill devices":
            times = [publication.at for publication in _published_by_clients_at(ledger, fault["target"][0])]
        else:
            continue
        during = sum(fault["at"] + _GRACE < at < fault["until"] for at in times)
        if during:
            yield f"{what}: {during} messages were processed or published there"


def _published_by_clients_at(ledger: Ledger, node: str) -> Iterator[PublishedMessage]:
    """Without what MQTT devices published there: they are another process."""
    for publication in ledger.publications.values():
        if ledger.nodes.get(publication.key[0]) == node and not ledger.topic(publication.topic).get("anonymous"):
            yield publication


def _processed_at(ledger: Ledger, site: str) -> Iterator[Event]:
    for publication in ledger.publications.values():
        yield from (event for event in publication.processed if event["site"] == site)
