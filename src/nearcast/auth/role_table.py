"""The table of roles: which may publish and subscribe to which subjects. Printed in docs/security.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nearcast.auth.roles import ROLES, Grants, Role, inbox, permissions
from nearcast.domain.topic import overlaps
from nearcast.nats import subjects

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXAMPLES", "example_grants", "is_allowed", "role_table", "role_users"]

_SITE, _USER = "edge", "car7"
_OWN = Grants(("gps.car7",), ("gps.car7",), ("alerts",), ("reports",))

EXAMPLES: dict[str, str] = {
    subjects.publications("gps.car7"): "publications of a topic it was given",
    subjects.publications("gps.other"): "publications of another topic",
    subjects.notifications("gps.car7"): "notifications of a topic it was given",
    subjects.notifications("gps.other"): "notifications of another topic",
    subjects.copies("gps.car7"): "copies for spools",
    subjects.marks("gps.car7"): "marks of what was processed",
    subjects.redelivery("gps.car7"): "publications sent again",
    subjects.dead_letters("gps.other"): "dead letters",
    subjects.settlements("gps.car7"): "settled dead letters",
    subjects.tips("gps.car7"): "what stores have of a topic",
    subjects.repair(_SITE, "gps_2ecar7", "pub.gps.car7"): "repair of the own store",
    subjects.repair("cloud", "gps_2ecar7", "pub.gps.car7"): "repair of another store",
    subjects.handover(_SITE, "worker-0", "gps.car7"): "handover between workers",
    subjects.feed("reports"): "records of a dataset",
    subjects.channel_results("alerts", "k1"): "results of a channel",
    f"{subjects.history(_SITE, 'read')}.{subjects.history_scope('gps.car7')}": "the past of a topic it was given",
    f"{subjects.history(_SITE, 'read')}.{subjects.history_scope('gps.other')}": "the past of another topic",
    subjects.topics_lookup(_SITE): "topic lookup",
    f"{subjects.channels_service(_SITE, 'renew')}.car7": "own channel subscriptions",
    f"{subjects.channels_service(_SITE, 'renew')}.other": "channel subscriptions of others",
    subjects.client_request("register", "car7"): "registering itself",
    subjects.client_request("register", "other"): "registering another client",
    subjects.site_registration(_SITE): "registering the own site",
    subjects.site_registration("fake"): "registering another site",
    subjects.coordinator("topic", "ls"): "asking the coordinator",
    subjects.coordinator("topic", "rm"): "changing topics",
    subjects.coordinator("plan", "apply"): "applying plans",
    subjects.data_cluster("query"): "asking the data cluster",
    subjects.client_command("car7"): "commands to this client",
    subjects.client_command("other"): "commands to another client",
    subjects.term_claim(_SITE): "asking whether a command's term leads",
    subjects.client_answer("car7", "t1"): "answering commands",
    subjects.site_command(_SITE, "start"): "commands to the own site",
    subjects.site_command("cloud", "start"): "commands to another site",
    subjects.worker_command(_SITE, "worker-0", "host"): "commands to workers of the own site",
    subjects.client_reports(_SITE, "car7"): "its own reports",
    subjects.client_reports(_SITE, "other"): "reports of another client",
    subjects.witness(_SITE): "asking a site whether a coordinator answers it",
    subjects.report(_SITE): "reports of the own site",
    subjects.report("cloud"): "reports of another site",
    subjects.advertisement(_SITE): "advertisements of the own store",
    f"{subjects.store_api(_SITE)}.STREAM.DELETE.x": "changing streams of the own site",
    f"{subjects.store_api('cloud')}.STREAM.DELETE.x": "changing streams of another site",
    f"{subjects.store_api('cloud')}.DIRECT.GET.x": "reading another store",
    f"{inbox('car7')}.1": "its own answers",
    f"{inbox('other')}.1": "answers to others",
    "$SYS.REQ.SERVER.PING": "the brokers' own account",
}
"""A subject of each kind, and what it is for; the device of these examples is `car7`, the site `edge`."""


def role_users() -> Iterator[tuple[Role, str, str]]:
    """Role, user and site of the examples."""
    for role in ROLES:
        yield role, _user(role), _SITE if role in ("site", "store", "worker") else ""


def example_grants(role: Role) -> Grants:
    """What the user of the examples was given."""
    return _OWN if role == "device" else Grants()


def is_allowed(role: Role, action: Literal["publish", "subscribe"], subject: str) -> bool:
    """Whether the user of the examples may."""
    found = permissions(role, _user(role), example_grants(role), _SITE)
    patterns = found.publish if action == "publish" else found.subscribe
    return any(overlaps(pattern, subject) for pattern in patterns)


def role_table() -> str:
    """In Markdown: P may publish, S may subscribe."""
    lines = ["| subject | what | " + " | ".join(ROLES) + " |", "|---|---|" + "---|" * len(ROLES)]
    for subject, what in EXAMPLES.items():
        cells = [
            ("P" if is_allowed(role, "publish", subject) else "")
            + ("S" if is_allowed(role, "subscribe", subject) else "")
            for role in ROLES
        ]
        lines.append(f"| `{subject}` | {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _user(role: Role) -> str:
    return {"device": _USER, "site": _SITE, "store": "edge-store", "worker": "edge-worker"}.get(role, role)
