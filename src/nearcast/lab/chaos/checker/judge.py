"""Whether a run kept the promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from nearcast.lab.chaos.checker.evidence import Event, Ledger, PublishedMessage
from nearcast.lab.chaos.checker.flows import Flow, flows, longest_pause, receipt_pauses
from nearcast.lab.chaos.checker.verdict import Promise, Verdict

__all__ = ["check", "owed"]

ON_ITS_WAY = 2.0  # s
UNDER_WAY = 1.0  # s after a fault began: what was under way is still noted
CUTTING = ("cut site", "cut link", "cut one way", "stop broker", "stop site", "loss")
LATE = 1.0  # s; what comes sooner than that after it was published, and behind newer ones, is out of order
LINKS_COME_BACK = 5.0  # s after a fault, until when it may be late all the same: ways change, and stores fill gaps
STALL = 10.0  # s without a delivery, or a receipt, in a flow that a fault does not touch
WAITED_FOR = 50.0  # s; an older publication, in a topic that promises order
GAP_WAIT = 60.0 + STALL  # s; for one that was never stored, in such a topic: nobody can tell that it does not come


def owed(ledger: Ledger) -> int:
    """How many acknowledged publications of durable topics have not been processed or delivered everywhere."""
    return sum(1 for publication in ledger.judged() if any(_missing(ledger, publication)))


def check(ledger: Ledger) -> Verdict:
    """Judge a run."""
    verdict = Verdict()
    _check_losses(ledger, verdict)
    _check_repeats(ledger, verdict)
    _check_order(ledger, verdict)
    _check_processing_order(ledger, verdict)
    _check_owners(ledger, verdict)
    if ledger.stores_read:
        _check_stores(ledger, verdict)
    for reason in ledger.unread:
        verdict.add(Promise.UNREAD, reason)
    _check_effects(ledger, verdict)
    if not any(ledger.judged()):
        verdict.add(Promise.NOT_JUDGED, f"{len(ledger.publications)} publications")
    every = flows(ledger)
    verdict.faults = [_fault_row(ledger, verdict, number, every) for number in range(len(ledger.faults()))]
    verdict.broken = Counter({promise: verdict.broken[promise] for promise in Promise if promise in verdict.broken})
    _count(ledger, verdict)
    return verdict


def _missing(ledger: Ledger, publication: PublishedMessage) -> Iterator[tuple[Promise, str]]:
    """What is missing of an acknowledged publication, and at whom. The first place where it was lost counts."""
    topic = ledger.topic(publication.topic)
    if ledger.stores_read and topic["replicas"]:
        away = [site for site in topic["replicas"] if site not in ledger.stores_read]
        if len(publication.stored) + len(away) < topic["quorum"]:
            yield Promise.NEVER_STORED, ", ".join(sorted(publication.stored)) or "no store"
            return
    if topic.get("processed") and not publication.processed:
        yield Promise.DEAD if publication.dead else Promise.NOT_PROCESSED, ""
        return
    parts = publication.count if topic.get("processed") else 1
    for subscriber in sorted(ledger.subscribers(publication)):
        if any((subscriber, part) not in publication.delivered for part in range(parts)):
            yield Promise.DEAD if publication.dead else Promise.NOT_DELIVERED, subscriber


def _check_losses(ledger: Ledger, verdict: Verdict) -> None:
    for publication in ledger.judged():
        for where, at_whom in _missing(ledger, publication):
            fault, when = _when(ledger, publication.at)
            publisher, n = publication.key
            name = f"{publication.topic} {publisher} {n}"
            verdict.add(where, f"{name} {at_whom} ({when}{'' if fault is None else f' of fault {fault + 1}'})")
            verdict.losses.append(
                {"where": where, "when": when, "fault": fault, "topic": publication.topic, "publisher": publisher,
                 "n": n, "subscriber": at_whom, "published": publication.at}
            )  # fmt: skip


def _when(ledger: Ledger, at: float) -> tuple[int | None, str]:
    """The fault during which something was published, and in which third of it; or that none had come yet.

    What was on its way when a fault began belongs to its start.
    """
    for number, fault in reversed(list(enumerate(ledger.faults()))):
        if fault["at"] - ON_ITS_WAY <= at:
            third = (at - fault["at"]) / (fault["until"] - fault["at"]) * 3
            return number, "after" if third >= 3 else ("start", "middle", "end")[max(0, int(third))]
    return None, "before all faults"


def _check_repeats(ledger: Ledger, verdict: Verdict) -> None:
    """A subscriber's process gets each notification once; a store keeps each once. Devices without ids may repeat."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for event in ledger.deliveries:
        if not ledger.topic(event["topic"]).get("anonymous"):
            seen[event["subscriber"], event["process"], event["publisher"], event["n"], event["part"]] += 1
    for (subscriber, _, publisher, n, part), times in seen.items():
        if times > 1:
            verdict.add(Promise.TWICE, f"{publisher} {n};{part} to {subscriber}, {times} times")
    kept: Counter[tuple[Any, ...]] = Counter()
    for event in ledger.stored:
        if event["kind"] != "dead letter" and not ledger.topic(event["topic"]).get("anonymous"):
            kept[event["site"], event["kind"], event["publisher"], event["n"], event["part"]] += 1
    for (site, kind, publisher, n, part), times in kept.items():
        if times > 1:
            verdict.add(Promise.STORED_TWICE, f"{kind} {publisher} {n};{part} at {site}, {times} times")


def _check_order(ledger: Ledger, verdict: Verdict) -> None:
    """Per publisher, topic and subscriber's process.

    Durable: what was acknowledged and is not late: that says so, and comes a second or more after it was published, or
    while a fault lasts or has just ended.
    Plain: on one path, which is a connection of its publisher, the links between sites, and a worker.
    """
    newest: dict[tuple[Any, ...], PublishedMessage] = {}
    seen: set[tuple[Any, ...]] = set()
    for event in ledger.deliveries:
        topic = ledger.topic(event["topic"])
        flow = (event["subscriber"], event["process"], event["publisher"], event["topic"])
        one = (*flow, event["n"], event["part"])
        if topic.get("anonymous") or topic.get("unordered") or one in seen:
            continue
        seen.add(one)
        publication = ledger.publications[event["publisher"], event["n"]]
        before = newest.get(flow)
        if before is None or before.key[1] <= publication.key[1]:
            newest[flow] = publication
            continue
        text = f"{event['publisher']} {event['n']} after {before.key[1]} to {event['subscriber']}"
        if ledger.durable(publication):
            late = event["late"] and (event["at"] - publication.at > LATE or _is_disturbed(ledger, event["at"]))
            excused = publication.receipt is None or late
        else:
            excused = _path(publication) != _path(before) or _was_in_a_cut_link(ledger, publication, event)
        if excused:
            verdict.counts["out of order, late or on another path"] += 1
        else:
            verdict.add(Promise.DISORDER, text)


def _is_disturbed(ledger: Ledger, at: float) -> bool:
    return any(fault["at"] <= at < fault["until"] + LINKS_COME_BACK for fault in ledger.faults())


def _check_processing_order(ledger: Ledger, verdict: Verdict) -> None:
    """Topics that promise order: of each publisher, what was acknowledged is first processed in order, late or not.

    One that was published long before it was acknowledged is not waited for.
    """
    newest: dict[tuple[str, str], int] = {}
    first = [
        (publication.processed[0]["at"], publication)
        for publication in ledger.publications.values()
        if publication.processed and publication.receipt is not None
        and publication.receipt - publication.at < WAITED_FOR
        and ledger.topic(publication.topic).get("ordered")
    ]  # fmt: skip
    for _, publication in sorted(first, key=lambda one: one[0]):
        publisher, n = publication.key
        before = newest.get((publisher, publication.topic), 0)
        if n < before:
            verdict.add(Promise.PROCESSED_OUT_OF_ORDER, f"{publication.topic} {publisher} {n} after {before}")
        newest[publisher, publication.topic] = max(n, before)


def _path(publication: PublishedMessage) -> tuple[Any, ...]:
    worker = publication.processed[0]["worker"] if publication.processed else None
    return publication.path, worker


def _was_in_a_cut_link(ledger: Ledger, publication: PublishedMessage, delivery: Event) -> bool:
    """Whether it was on its way when a link was cut or a broker hung: newer ones came by the next connection."""
    homes = {publication.home, delivery["home"]}
    return any(
        fault["kind"] in CUTTING and fault["at"] - ON_ITS_WAY <= publication.at <= fault["until"]
        and homes & set(fault["touches"])
        for fault in ledger.faults()
    )  # fmt: skip


def _check_owners(ledger: Ledger, verdict: Verdict) -> None:
    """Of a topic that one site manages, one worker marks in an epoch."""
    owners: defaultdict[tuple[str, Any], set[str]] = defaultdict(set)
    for mark in ledger.marks:
        if mark["epoch"] is not None and len(ledger.topic(mark["topic"]).get("managed_by", ())) == 1:
            owners[mark["topic"], mark["epoch"]].add(mark["worker"])
    for (topic, epoch), workers in sorted(owners.items(), key=str):
        if len(workers) > 1:
            verdict.add(Promise.TWO_OWNERS, f"{topic}, epoch {epoch}: {', '.join(sorted(workers))}")


def _check_stores(ledger: Ledger, verdict: Verdict) -> None:
    """Each replica has what was acknowledged, and so has the history asked at its site."""
    lost = {(loss["publisher"], loss["n"]) for loss in verdict.losses if loss["where"] == Promise.NEVER_STORED}
    read = {(event["site"], event["topic"]) for event in ledger.history_read if not event["incomplete"]}
    for publication in ledger.judged():
        if publication.key in lost:
            continue
        topic = ledger.topic(publication.topic)
        publisher, n = publication.key
        for site in ledger.replicas_of(topic):
            if site in ledger.stores_read and site not in publication.stored:
                verdict.add(Promise.STORE_LACKS, f"{publication.topic} {publisher} {n} at {site}")
            asked = (site, topic["name"]) in read
            if asked and publication.key not in ledger.history[site, publication.topic]:
                verdict.add(Promise.HISTORY_LACKS, f"{publication.topic} {publisher} {n} asked at {site}")
    for topic in ledger.topics:
        now = ledger.replicas_of(topic)
        if len(now) < len(topic.get("replicas", ())):
            verdict.add(
                Promise.REPLICAS, f"{topic['name']}: {', '.join(now)} instead of {', '.join(topic['replicas'])}"
            )


def _check_effects(ledger: Ledger, verdict: Verdict) -> None:
    """A run whose faults broke nothing proves nothing: what was processed or published where all was down."""
    for number, fault in enumerate(ledger.faults()):
        publications, place = ledger.publications.values(), fault["target"][0]
        if fault["kind"] in ("kill site", "stop site"):
            times = [event["at"] for one in publications for event in one.processed if event["site"] == place]
        elif fault["kind"] == "kill devices":
            here = (one for one in publications if ledger.nodes.get(one.key[0]) == place)
            # Without what MQTT devices published there: they are another process.
            times = [one.at for one in here if not ledger.topic(one.topic).get("anonymous")]
        else:
            continue
        during = sum(fault["at"] + UNDER_WAY < at < fault["until"] for at in times)
        if during:
            what = f"fault {number + 1} ({fault['kind']} {' '.join(fault['target'])})"
            verdict.add(Promise.NO_EFFECT, f"{what}: {during} messages were processed or published there")


def _fault_row(ledger: Ledger, verdict: Verdict, number: int, every: list[Flow]) -> Event:
    """What happened during a fault and after it."""
    fault = ledger.faults()[number]
    start, end = fault["at"], fault["until"]
    later = [phase["at"] for phase in ledger.phases if phase["at"] > end and phase["phase"] != "recovery"]
    limit = later[0] if later else max((event["at"] for event in ledger.deliveries), default=end)
    name = f"fault {number + 1} ({fault['kind']} {' '.join(fault['target'])})"
    recover, caught_up, stalled = 0.0, 0.0, 0
    for flow in every:
        if not any(start <= at < limit for at in flow.published):
            continue
        whom = f"{name}: {flow.topic} from {flow.publisher} to {flow.subscriber}"
        came = [at for at, published in flow.delivered if published >= end and at < limit]
        if came:
            recover = max(recover, min(came) - end)
        elif any(end <= at < limit - _longest_wait(ledger, flow) for at in flow.published):
            verdict.add(Promise.NOT_RECOVERED, whom)
        caught_up = max([caught_up, *(at - end for at, published in flow.delivered if start <= published < end)])
        places = flow.places_at(start)
        if places is not None and not places & set(fault["touches"]):
            pause = longest_pause((at for at, _ in flow.delivered), flow.published, start, end)
            if pause > STALL:
                stalled += 1
                verdict.add(Promise.STALLED, f"{whom}, nothing for {pause:.1f} s")
    for publisher, pause in receipt_pauses(ledger, fault).items():
        if pause > STALL:
            stalled += 1
            verdict.add(Promise.STALLED, f"{name}: no receipt for {publisher} for {pause:.1f} s")
    lost = Counter((loss["where"], loss["when"]) for loss in verdict.losses if loss["fault"] == number)
    published = [publication for publication in ledger.publications.values() if start <= publication.at < end]
    return {
        "kind": fault["kind"], "target": fault["target"], "seconds": round(end - start, 1),
        "published": len(published), "receipts": sum(publication.receipt is not None for publication in published),
        "lost": [{"where": where, "when": when, "count": count} for (where, when), count in sorted(lost.items())],
        "recover_seconds": round(recover, 2), "caught_up_seconds": round(caught_up, 2), "stalled": stalled,
    }  # fmt: skip


def _longest_wait(ledger: Ledger, flow: Flow) -> float:
    """How long what is published may take once a fault is over: topics that promise order wait for a missing one."""
    return GAP_WAIT if ledger.topic(flow.topic).get("ordered") else STALL


def _count(ledger: Ledger, verdict: Verdict) -> None:
    publications, durable = ledger.publications.values(), list(ledger.judged())
    plain = [publication for publication in publications if not ledger.durable(publication)]
    subscribers = {publication.key: ledger.subscribers(publication) for publication in plain}
    verdict.counts |= {
        "published": len(publications),
        "acknowledged": len(durable),
        "refused or without a quorum": sum(publication.failed for publication in publications),
        "processed": sum(len(publication.processed) for publication in publications),
        "processed more than once": sum(
            len(publication.processed) > 1
            for publication in publications
            if not ledger.topic(publication.topic).get("anonymous")
        ),
        "delivered": len(ledger.deliveries),
        "delivered late": sum(bool(event["late"]) for event in ledger.deliveries),
        "stored": len(ledger.stored),
        "plain, not delivered": sum(
            (subscriber, 0) not in publication.delivered
            for publication in plain
            for subscriber in subscribers[publication.key]
        ),
        "messages nobody published": ledger.strangers,
        "torn lines": ledger.torn_lines,
    }
