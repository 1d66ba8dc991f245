"""The subjects messages travel on. Everything else asks here; nothing else spells one out."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from nearcast.domain.topic import matches

__all__ = [
    "ADVERTISEMENTS",
    "MQTT_STREAM",
    "PROCESSORS",
    "REPORTS",
    "SITE_DISCOVERY",
    "STATE_BUCKET",
    "STATE_COPY_BUCKET",
    "advertisement",
    "channel_results",
    "channel_stream",
    "channels_service",
    "client_answer",
    "client_command",
    "client_notice",
    "client_reports",
    "client_request",
    "coordinator",
    "copies",
    "data_cluster",
    "dead_letters",
    "feed",
    "feed_stream",
    "handed_topic",
    "handover",
    "history",
    "history_scope",
    "history_scopes",
    "inbox_owner",
    "is_answerable",
    "is_notification",
    "marks",
    "marks_of_family",
    "may_keep",
    "mqtt_kept",
    "notifications",
    "progress",
    "publications",
    "redelivery",
    "repair",
    "replica",
    "report",
    "settlements",
    "site_command",
    "site_coordinates",
    "site_registration",
    "store_api",
    "stream_name",
    "subject_text",
    "term_claim",
    "tips",
    "topic_of",
    "topics_lookup",
    "witness",
    "worker",
    "worker_command",
]

_SPELT_OUT = re.compile(r"[^A-Za-z0-9-]")
_SPELT_BYTES = re.compile(r"(?:_[0-9a-f]{2})+")
_ROUTED_REPLY = re.compile(r"_GR_\.[^.]+\.[^.]+\.")  # what a gateway writes before the reply of a request
_LONGEST_TEXT = 3000  # of a subject that is no UTF-8; marks carry topics, and are limited
_LONGEST_NAME, _LONGEST_START = 240, 190  # a file name has at most 255 bytes, its suffix among them

PROCESSORS = "processors"
"""The queue group of a topic's processors: one member at each managing site, the publisher's own site first."""

STATE_BUCKET = "nearcast"
"""The key-value bucket of the cloud's store in which coordinators keep what they know."""

STATE_COPY_BUCKET = "nearcast-copy"
"""The copy of that bucket in the store of another site."""

SITE_DISCOVERY = "api.sites.discover"
"""Request that every site answers."""

MQTT_STREAM = "$MQTT_msgs"
"""The stream in which a broker keeps what MQTT devices publish with QoS 1; its subjects are those of `mqtt_kept`."""

ADVERTISEMENTS = "adv.store.*"
REPORTS = "mon.site.*"


def publications(topic: str) -> str:
    """Where publications of a topic go."""
    return f"pub.{topic}"


def mqtt_kept(subject: str) -> str:
    """Where a broker keeps what an MQTT device publishes to a subject with QoS 1."""
    return f"$MQTT.msgs.{subject}"


def copies(topic: str) -> str:
    """Where the processing site sends copies for the spools of the other managing sites."""
    return f"spl.{topic}"


def notifications(topic: str) -> str:
    """Where notifications made by a topic's processor go."""
    return f"ntf.{topic}"


def dead_letters(topic: str) -> str:
    """Where publications go that a processor could not handle."""
    return f"dlq.{topic}"


def settlements(topic: str) -> str:
    """Where it is said which dead letters of a topic were retried or dropped."""
    return f"stl.{topic}"


def marks(topic: str) -> str:
    """Where workers say which publications of a topic they have processed."""
    return f"mrk.{topic}"


def marks_of_family(name: str) -> str:
    """Where the marks of all topics of a family go together: within `marks` of its pattern."""
    return marks(name.replace("*", "_").replace(">", "_"))


def redelivery(topic: str) -> str:
    """Where stores send publications again that nobody has marked."""
    return f"rdl.{topic}"


def tips(topic: str) -> str:
    """Where stores say what they stored last of a topic."""
    return f"tip.{topic}"


def repair(site: str, stream: str, subject: str) -> str:
    """Where a message goes that is to be stored by the stream of one site only, under the subject given."""
    return f"rep.{site}.{stream}.{subject}"


def topic_of(subject: str) -> str:
    """The topic of a subject of the functions above but `repair`: their prefixes have three letters and a dot."""
    return subject[4:]


def is_notification(subject: str) -> bool:
    """Whether a message on this subject was made by a processor."""
    return subject.startswith("ntf.")


def subject_text(subject: bytes) -> str:
    r"""A subject as it came off the wire, where nobody checks that it is UTF-8; what is not is written `\xff`.

    It is the same for a message that comes by itself and one that is read from a store, so that marks are found.
    """
    try:
        return subject.decode()
    except UnicodeDecodeError:
        found = subject.decode("utf-8", "backslashreplace")
        if len(found) <= _LONGEST_TEXT:
            return found
        return f"{found[:_LONGEST_TEXT]}~{hashlib.sha256(subject).hexdigest()[:40]}"


def topics_lookup(site: str) -> str:
    """Request: what is promised for topics, answered by the agent of a site."""
    return f"api.topics.{site}"


def advertisement(site: str) -> str:
    """A store's announcement of the topics it keeps."""
    return f"adv.store.{site}"


def history(site: str, verb: str) -> str:
    """Request to the history service of a site: `ping`, `find`, or with a scope behind it `read` or `tail`."""
    return f"api.history.{site}.{verb}"


def history_scope(topic: str, *, results: bool = False) -> str:
    """What a request for the past of a topic (or pattern, or with `results` a channel) says behind its subject.

    A broker reads subjects only, so this is how it can tell whose past somebody asks for. `*` is written `+`, and what
    ends with `>` is apart from the rest: a right to `gps.*` must not be one to `gps.>`.
    """
    if results:
        return f"c.{topic.partition('.')[0]}"
    levels = ["+" if level == "*" else level for level in topic.split(".")]
    return ".".join(["r", *levels[:-1]] if levels[-1] == ">" else ["t", *levels])


def history_scopes(pattern: str) -> list[str]:
    """The scopes (as patterns) of all that a pattern covers."""
    if not pattern.endswith(">"):
        return [f"t.{pattern}"]
    below = pattern[:-1].rstrip(".")
    rest = f"r.{below}" if below else "r"
    return [f"t.{pattern}", rest, f"{rest}.>"]


def replica(site: str, verb: str) -> str:
    """Request to the agent of a site about what its store has: `digests`, `runs`, `hashes` or `progress`."""
    return f"api.store.{site}.{verb}"


def progress(site: str) -> str:
    """Request of a site's workers to its agent: how far publications were processed, as their stores know."""
    return f"api.progress.{site}"


def store_api(site: str) -> str:
    """The JetStream API prefix of a site's store, reachable from every site."""
    return f"$JS.{site}.API"


def stream_name(topic: str) -> str:
    """The stream that keeps a topic, and the name of its files: each topic has its own.

    Streams may not be named with dots or wildcards: each byte but letters, digits and - is spelt `_` and two digits. A
    name that would be too long for a file ends in `__` and a hash instead.
    """
    name = _SPELT_OUT.sub(lambda found: "".join(f"_{byte:02x}" for byte in found.group().encode()), topic)
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_START]}__{hashlib.sha256(topic.encode()).hexdigest()[:40]}"


@lru_cache(maxsize=4096)
def may_keep(stream: str, subject: str) -> bool:
    """Whether a stream of that name may keep what is published to a subject; a name with a hash does not tell."""
    kind, _, name = subject.partition(".")
    if kind == "fed":
        return stream == feed_stream(name)
    if "__" in stream:
        return True
    topic = _SPELT_BYTES.sub(
        lambda found: bytes.fromhex(found.group().replace("_", "")).decode(errors="replace"), stream
    )
    return matches(topic, name)


def worker(site: str, name: str) -> str:
    """Request: what a worker has done so far."""
    return f"api.worker.{site}.{name}"


def worker_command(site: str, name: str, verb: str) -> str:
    """Request to a worker, from the agent of its site or from a worker that takes a topic over."""
    return f"ctl.worker.{site}.{name}.{verb}"


def handover(site: str, name: str, topic: str) -> str:
    """Publications a worker that left a topic still got, for the worker that has it now."""
    return f"hnd.{site}.{name}.{topic}"


def handed_topic(subject: str) -> str:
    """The topic of a subject made by `handover`."""
    return subject.split(".", 3)[3]


def witness(site: str) -> str:
    """Request of another site: whether a coordinator answers this one."""
    return f"api.witness.{site}"


def site_command(site: str, verb: str) -> str:
    """A command of the control plane to the agent of a site."""
    return f"ctl.site.{site}.{verb}"


def client_command(client: str) -> str:
    """A command of the control plane to a client."""
    return f"ctl.client.{client}"


def client_notice(client: str) -> str:
    """Where a site tells a client why it closes its connections: one of the client's inboxes, so it can be no other."""
    return f"_INBOX.{client}.notice"


def client_answer(client: str, token: str) -> str:
    """Where a client answers a command: it may publish to no inbox, or it could forge a store's acknowledgement."""
    return f"ans.{client}.{token}"


def is_answerable(reply: str) -> bool:
    """Whether a request with this reply may be answered: in an inbox, or where a client answers commands.

    Brokers do not check what a user writes as its reply. Who answers to any subject lends its own rights to the
    sender: an error as answer to `$JS.edge.API.STREAM.DELETE.gps` would be a valid command to remove a stream.
    """
    return _original_reply(reply).startswith(("_INBOX.", "ans."))


def inbox_owner(reply: str) -> str:
    """The user whose inbox a reply is; nothing for any other reply."""
    levels = _original_reply(reply).split(".", 2)
    return levels[1] if levels[0] == "_INBOX" and len(levels) == 3 else ""


def _original_reply(reply: str) -> str:
    """The reply as its sender wrote it: a gateway puts something in front."""
    routed = _ROUTED_REPLY.match(reply)
    return reply[routed.end() if routed else 0 :]


def client_request(verb: str, client: str) -> str:
    """Request of a client about itself to the coordinator: `register` or `leave`."""
    return f"api.client.{verb}.{client}"


def site_registration(site: str) -> str:
    """Request of a site to the coordinator that it be registered."""
    return f"api.site.register.{site}"


def client_reports(site: str, client: str) -> str:
    """What a client tells the agent of its home, each period."""
    return f"mon.client.{site}.{client}"


def report(site: str) -> str:
    """A site's periodic report."""
    return f"mon.site.{site}"


def site_coordinates(site: str) -> str:
    """Request: the coordinates of a site and of the other sites it knows, answered by its agent."""
    return f"api.coordinates.{site}"


def term_claim(site: str) -> str:
    """Request of a client: does the coordinator of a term lead? Answered by the agent of a site."""
    return f"api.term.{site}"


def coordinator(noun: str, verb: str) -> str:
    """Request to the coordinator that leads."""
    return f"api.{noun}.{verb}"


def data_cluster(verb: str) -> str:
    """Request to the driver of the data cluster: state, quarantine, query, checks of what is to be added."""
    return f"api.cluster.{verb}"


def feed(dataset: str) -> str:
    """Where records for a dataset go."""
    return f"fed.{dataset}"


def feed_stream(dataset: str) -> str:
    """The stream that keeps the records of a dataset until the data cluster has read them."""
    return f"fed-{dataset}"


def channel_results(channel: str, key: str) -> str:
    """Where the results of a shared subscription go."""
    return f"chn.{channel}.{key}"


def channel_stream(channel: str) -> str:
    """The stream that keeps a channel's results for those who ask again."""
    return f"chn-{channel}"


def channels_service(site: str, verb: str) -> str:
    """Request to the agent of a site: `confirm`, `dataset`, or with the client's name behind it `subscribe`, `renew`,
    `leave`."""
    return f"api.channels.{site}.{verb}"
