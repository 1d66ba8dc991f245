"""Roles: the subjects that each may publish and subscribe to, made of the functions of `nats/subjects` alone.

`$JS.<site>.API` is the door to a site's store. Who may publish below it may read, change or remove what is stored, so
only roles that keep streams may; all others ask the site's agent, which looks at what stands behind the subject.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from nearcast.domain.names import check_identifier, check_name
from nearcast.domain.topic import check_pattern, publisher_level
from nearcast.errors import InputError
from nearcast.nats import subjects
from nearcast.nats.audit import AUDIT_BUCKET
from nearcast.nats.catalog import SUBSCRIPTIONS
from nearcast.nats.kv import CATCH_UP, bucket_stream, bucket_subject

__all__ = ["NO_GRANTS", "ROLES", "Grants", "Permissions", "Role", "check_role", "denied_queues", "inbox", "permissions"]

Role = Literal[
    "device", "service", "reader", "operator", "site", "store", "worker", "coordinator", "cluster", "console"
]
ROLES: tuple[Role, ...] = get_args(Role)
_OPEN: tuple[Role, ...] = ("service", "reader", "operator")  # without grants they have those of all topics
_SERVICES = ("$SRV.PING", "$SRV.PING.>", "$SRV.INFO", "$SRV.INFO.>", "$SRV.STATS", "$SRV.STATS.>")
_READ_VERBS = {
    "site": ("ls", "info", "map"),
    "client": ("ls", "info"),
    "channel": ("subscriptions",),
    "topic": ("ls", "info", "figures"),
    "plan": ("show",),
    "move": ("ls",),
    "coordinator": ("status", "settings"),
    "audit": ("ls",),
}
_CLUSTER_VERBS = ("state", "quarantine", "query", "explain-channel")
_CATALOG_VERBS = (
    "check-dataset", "check-columns", "check-channel", "test-channel", "replay-channel", "load-dataset",
    "backfill-dataset",
)  # fmt: skip
_CHANGE_VERBS = {"client": ("move",), "topic": ("add", "rm", "move", "replicas"), "plan": ("apply", "execute")}


@dataclass(frozen=True)
class Grants:
    """What a user was given by name: patterns of topics, channels, and datasets that it may feed."""

    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    feeds: tuple[str, ...] = ()

    def check(self, user: str) -> Grants:
        """Itself, if every pattern is one, and none is of another publisher (`gps.@car7`)."""
        for pattern in (*self.publish, *self.subscribe):
            check_pattern(pattern)
        for pattern in self.publish:
            if publisher_level(pattern) not in ("", user):
                raise InputError(
                    f"{user} is to publish to {pattern!r}, which is another publisher's; allowed: a level @{user}"
                )
        for name in (*self.channels, *self.feeds):
            if name != "*":
                check_identifier(name, "channel or dataset")
        return self


NO_GRANTS = Grants()
_EVERYTHING = {
    "service": Grants((">",), (">",), ("*",), ("*",)),
    "reader": Grants((), (">",), ("*",), ()),
    "operator": Grants((">",), (">",), ("*",), ("*",)),
}


@dataclass
class Permissions:
    """Patterns of subjects. queues_denied: `subject queue` pairs that are not covered by `subscribe`."""

    publish: list[str] = field(default_factory=list)
    subscribe: list[str] = field(default_factory=list)
    queues_denied: tuple[str, ...] = ()


def check_role(name: str) -> Role:
    """The role of that name."""
    for role in ROLES:
        if role == name:
            return role
    raise InputError(f"the role is {name!r}; allowed: {', '.join(ROLES)}")


def inbox(user: str) -> str:
    """Below this a user gets answers; no other user hears them."""
    return f"_INBOX.{user}"


def denied_queues(role: str) -> tuple[str, ...]:
    """`subject queue` pairs that a role may not subscribe to, although it may to the subject alone."""
    # A member of the processors' group would take publications away from the workers.
    return (f"{subjects.publications('>')} {subjects.PROCESSORS}",) if role in ("device", *_OPEN) else ()


def permissions(role: Role, user: str, grants: Grants = NO_GRANTS, site: str = "") -> Permissions:
    """What a user of a role may do. site: the one that a site, store or worker belongs to."""
    check_name(user, "user")
    if role not in ("device", *_OPEN) and grants != Grants():
        raise InputError(f"role {role} takes no grants; its subjects are fixed")
    match role:
        case "device" | "service" | "reader" | "operator":
            given = _EVERYTHING[role] if role in _OPEN and grants == Grants() else grants.check(user)
            found = _client(user, given)
            found.queues_denied = denied_queues(role)
            if role == "reader":
                found.publish += _reads()
            if role == "operator":
                _add_operator(found)
        case "site":
            found = _site(site)
        case "store":
            found = _store(site)
        case "worker":
            found = _worker(site)
        case "coordinator":
            found = _coordinator()
        case "cluster":
            found = _cluster()
        case "console":
            found = _console()
    found.subscribe.append(f"{inbox(user)}.>")
    return found


def _client(user: str, grants: Grants) -> Permissions:
    found = Permissions(
        publish=[
            subjects.topics_lookup("*"),
            subjects.history("*", "find"),
            subjects.history("*", "ping"),
            subjects.site_coordinates("*"),
            subjects.term_claim("*"),
            subjects.client_request("register", user),
            subjects.client_request("leave", user),
            subjects.client_reports("*", user),
            subjects.client_answer(user, "*"),
        ],
        subscribe=[subjects.client_command(user)],
    )
    found.publish += [subjects.publications(topic) for topic in grants.publish]
    found.publish += [subjects.feed(dataset) for dataset in grants.feeds]
    if grants.feeds:
        found.publish.append(subjects.channels_service("*", "dataset"))
    if grants.channels:  # whoever may not hear results has no use for subscriptions, which the data cluster evaluates
        found.publish.append(subjects.channels_service("*", "confirm"))
        found.publish += [f"{subjects.channels_service('*', verb)}.{user}" for verb in ("subscribe", "renew", "leave")]
    scopes = [scope for topic in grants.subscribe for scope in subjects.history_scopes(topic)]
    scopes += [subjects.history_scope(channel, results=True) for channel in grants.channels]
    found.publish += [f"{subjects.history('*', verb)}.{scope}" for scope in scopes for verb in ("read", "tail")]
    for topic in grants.subscribe:
        kinds = (subjects.notifications, subjects.publications, subjects.tips, subjects.dead_letters)
        found.subscribe += [kind(topic) for kind in kinds]
    found.subscribe += [subjects.channel_results(channel, "*") for channel in grants.channels]
    return found


def _verbs(verbs: dict[str, tuple[str, ...]]) -> list[str]:
    return [subjects.coordinator(noun, verb) for noun, names in verbs.items() for verb in names]


def _reads() -> list[str]:
    """Requests that change nothing."""
    return _verbs(_READ_VERBS) + [subjects.data_cluster(verb) for verb in _CLUSTER_VERBS]


def _add_operator(found: Permissions) -> None:
    """Operators change topics and plans through the coordinator, and catalogs and dead letters in the stores."""
    found.publish += _reads() + _verbs(_CHANGE_VERBS) + [subjects.data_cluster(verb) for verb in _CATALOG_VERBS]
    found.publish += [subjects.SITE_DISCOVERY, f"{subjects.store_api('*')}.>", "$SRV.>"]
    found.publish += [subjects.redelivery(">"), subjects.settlements(">")]
    found.subscribe += [subjects.REPORTS, subjects.client_reports("*", "*")]


def _site(site: str) -> Permissions:
    own, any_store = subjects.store_api(site), subjects.store_api("*")
    subscriptions = bucket_subject(SUBSCRIPTIONS, ">")
    return Permissions(
        publish=[
            "_INBOX.>",
            subjects.report(site),
            subjects.advertisement(site),
            subjects.site_registration(site),
            subjects.coordinator("site", "assignments"),
            subjects.site_coordinates("*"),
            subjects.worker(site, "*"),
            subjects.worker_command(site, "*", "*"),
            subjects.redelivery(">"),
            subjects.dead_letters(">"),
            subjects.marks(">"),
            subjects.tips(">"),
            subjects.publications(">"),  # of MQTT devices, when no store got them
            f"$JS.ACK.{subjects.MQTT_STREAM}.>",
            f"{subjects.replica('*', '*')}",
            subjects.witness("*"),
            subjects.repair(site, "*", ">"),
            f"{own}.>",
            "$JS.API.>",  # of the store itself, to which the agent is connected, too
            bucket_subject(CATCH_UP, ">"),
            f"{any_store}.INFO",
            f"{any_store}.DIRECT.GET.>",
            f"{any_store}.STREAM.INFO.>",
            f"{any_store}.STREAM.NAMES",
            f"{any_store}.STREAM.LIST",
            f"{any_store}.{subscriptions}",
            f"{any_store}.STREAM.PURGE.{bucket_stream(SUBSCRIPTIONS)}",
        ],
        subscribe=[
            subjects.site_command(site, "*"),
            subjects.SITE_DISCOVERY,
            subjects.topics_lookup(site),
            subjects.history(site, ">"),
            subjects.channels_service(site, ">"),
            subjects.replica(site, "*"),
            subjects.progress(site),
            subjects.witness(site),
            subjects.site_coordinates(site),
            subjects.term_claim(site),
            subjects.client_reports(site, "*"),
            subjects.ADVERTISEMENTS,
            *_SERVICES,
        ],
    )


def _store(site: str) -> Permissions:
    """The leaf node: it takes in what streams keep and requests to its API, and answers."""
    return Permissions(
        # Not `$JS.>` nor `$KV.>`: a store acknowledges to whatever reply a publisher wrote.
        publish=["_INBOX.>", "$JSC.>", "_R_.>", "_GR_.>", "$MQTT.>"],
        subscribe=[
            subjects.publications(">"),
            subjects.notifications(">"),
            subjects.dead_letters(">"),
            subjects.settlements(">"),
            subjects.marks(">"),
            subjects.feed("*"),
            subjects.channel_results("*", "*"),
            subjects.repair(site, "*", ">"),
            subjects.REPORTS,
            "$JS.>",
            "$JSC.>",
            "$KV.>",
            "$MQTT.>",
            "_INBOX.>",
            "_R_.>",
            "_GR_.>",
        ],
    )


def _worker(site: str) -> Permissions:
    return Permissions(
        publish=[
            "_INBOX.>",
            subjects.copies(">"),
            subjects.notifications(">"),
            subjects.dead_letters(">"),
            subjects.settlements(">"),
            subjects.marks(">"),
            subjects.handover("*", "*", ">"),
            subjects.worker_command("*", "*", "spool"),
            subjects.progress(site),
        ],
        subscribe=[
            subjects.publications(">"),
            subjects.copies(">"),
            subjects.redelivery(">"),
            subjects.marks(">"),
            subjects.handover(site, "*", ">"),
            subjects.worker(site, "*"),
            subjects.worker_command(site, "*", "*"),
            *_SERVICES,
        ],
    )


def _coordinator() -> Permissions:
    any_store = subjects.store_api("*")
    buckets = (subjects.STATE_BUCKET, subjects.STATE_COPY_BUCKET, AUDIT_BUCKET)
    api = [f"{verb}.{bucket_stream(bucket)}" for bucket in buckets for verb in ("STREAM.CREATE", "STREAM.PURGE")]
    return Permissions(
        publish=[
            "_INBOX.>",
            subjects.site_command("*", "*"),
            subjects.client_command("*"),
            subjects.SITE_DISCOVERY,
            *(f"{any_store}.{bucket_subject(bucket, '>')}" for bucket in buckets),
            *(f"{any_store}.{part}" for part in api),
            f"{any_store}.STREAM.UPDATE.*",
            f"{any_store}.STREAM.INFO.*",
            f"{any_store}.STREAM.NAMES",
            f"{any_store}.DIRECT.GET.>",
            f"{any_store}.INFO",
        ],
        subscribe=[
            subjects.REPORTS,
            *_verbs(_READ_VERBS),
            *_verbs(_CHANGE_VERBS),
            subjects.coordinator("site", "assignments"),
            subjects.site_registration("*"),
            f"{subjects.coordinator('site', 'register')}.>",
            f"{subjects.coordinator('client', 'register')}.>",
            f"{subjects.coordinator('client', 'leave')}.>",
            subjects.client_answer("*", "*"),
            *_SERVICES,
        ],
    )


def _cluster() -> Permissions:
    """The data cluster reads all stores, and keeps catalogs, results and its own reports in the cloud's."""
    return Permissions(
        publish=["_INBOX.>", f"{subjects.store_api('*')}.>", "$JS.API.>", subjects.channel_results("*", "*")],
        subscribe=[subjects.REPORTS, subjects.data_cluster("*")],
    )


def _console() -> Permissions:
    """The console itself only reads; what its users change they change as themselves."""
    any_store = subjects.store_api("*")
    reads = [f"{any_store}.{part}" for part in ("INFO", "STREAM.INFO.>", "STREAM.NAMES", "DIRECT.GET.>")]
    return Permissions(
        publish=[*_reads(), subjects.topics_lookup("*"), *reads], subscribe=[subjects.client_reports("*", "*")]
    )
