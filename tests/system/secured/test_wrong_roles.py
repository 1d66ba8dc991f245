"""Anything, on every subject, with credentials of a role that has no use for it: refused, and all others go on.

The subjects are those that brokers say are subscribed to and those of the roles' permissions, so that a new one is
fuzzed by itself. NEARCAST_FUZZ=20000 sends so many messages in all instead of a few per role.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random

import pytest
from tests.system.fuzzing import (
    MemoryGrowth,
    all_caught_up,
    concrete,
    connections,
    payload,
    processes,
    structs,
    subscribed_subjects,
)
from tests.system.secured.conftest import Secured

import nearcast
from nearcast.auth.role_table import EXAMPLES, example_grants, role_users
from nearcast.auth.roles import Permissions, permissions
from nearcast.domain.topic import covers, overlaps
from nearcast.nats import subjects
from nearcast.nats.connection import Connection
from nearcast.testing import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("secured")]
PER_ROLE = 250
IN_ALL = int(os.environ.get("NEARCAST_FUZZ", "0"))
# What can be done to a stream through the API of JetStream.
STREAM_VERBS = [
    "CREATE",
    "UPDATE",
    "DELETE",
    "PURGE",
    "INFO",
    "MSG.GET",
    "MSG.DELETE",
    "SNAPSHOT",
    "RESTORE",
    "PEER.REMOVE",
    "LEADER.STEPDOWN",
]
CONSUMER_VERBS = ("CREATE", "DURABLE.CREATE", "DELETE", "INFO", "NAMES", "LIST", "MSG.NEXT")
ROLES = {role: (user, permissions(role, user, example_grants(role), site)) for role, user, site in role_users()}
del ROLES["store"]  # a leaf node: it has a link of its own
DEPUTIES = ("device", "reader")  # what they may ask for does no harm, so that the reply alone is wrong


async def test_messages_of_the_wrong_role_are_refused_and_hurt_nobody(secured: Secured) -> None:
    rng, kinds = random.Random(26), structs()
    attackers: dict[str, Connection] = {}
    client = nearcast.connect(secured.running.url("cloud"), credentials=secured.auth.credentials_file("car7", "main"))
    try:
        for role, (user, _) in ROLES.items():
            attackers[role] = await secured.open(user)
        async with secured.connected("admin") as admin, client, client.subscribe("gps.car7") as received:
            patterns = await all_patterns(secured, admin)
            assert len(patterns) > 150
            assert {pattern.split(".")[0] for pattern in patterns} >= {"$JS", "$KV", "$SYS", "_INBOX", "ctl", "mon"}
            before, running = await connections(secured.running.sites), processes(secured.running)
            memory = MemoryGrowth(running)
            sent = dict.fromkeys(ROLES, 0)
            wrong = {role: forbidden(given, patterns, rng) for role, (_, given) in ROLES.items()}
            count = IN_ALL or PER_ROLE * len(ROLES)
            for n in range(count):
                role = list(ROLES)[n % len(ROLES)]
                reply = rng.choice(["", attackers[role].new_inbox(), rng.choice(wrong[role])])
                attackers[role].send(rng.choice(wrong[role]), b"", payload(kinds, rng), reply)
                sent[role] += 1
                if role in DEPUTIES:
                    allowed = rng.choice(requests(ROLES[role][1]))
                    asked = concrete(allowed, rng)
                    if covers(allowed, asked):
                        attackers[role].send(asked, b"", payload(kinds, rng), rng.choice(wrong[role]))
                if n % 500 == 0 or n in (count // 2, count - 1):
                    await asyncio.gather(*(one.flush(timeout=60) for one in attackers.values()))
                    await all_caught_up(secured.running)
                if n in (count // 2, count - 1):
                    await secured.reported()
                    memory.note()
            for role, (_, given) in ROLES.items():
                for pattern in patterns:
                    if not any(overlaps(allowed, pattern) for allowed in given.subscribe):
                        await attackers[role].subscribe_raw(pattern, never)
            for role, connection in attackers.items():
                with contextlib.suppress(AssertionError):
                    await until(lambda role=role: publications_refused(attackers[role]) == sent[role], 60)  # type: ignore[misc]
                assert publications_refused(connection) == sent[role], role
                assert connection.is_connected
            await secured.reported()
            receipt = await client.publish("gps.car7", {"n": 7})
            assert sorted(receipt.stores) == ["cloud", "edge"]
            assert (await anext(received)).data == {"n": 7}
            assert [process.pid for process in processes(secured.running)] == [process.pid for process in running]
            assert before - await connections(secured.running.sites) == set()
            grown = memory.of_last_part()
            assert max(grown.values()) < 64, grown
        assert secured.lost == []
        print(f"{sum(sent.values())} messages on {len(patterns)} patterns of subjects, all refused")
    finally:
        for connection in attackers.values():
            await connection.close()


async def all_patterns(secured: Secured, admin: Connection) -> list[str]:
    """Of subjects: what somebody listens on, what any role may do, and what can be done to each stream there is."""
    found = await subscribed_subjects(secured.running.sites) | EXAMPLES.keys()
    for _, given in ROLES.values():
        found |= {*given.publish, *given.subscribe}
    for site in secured.running.sites:
        prefix = subjects.store_api(site)
        for one in await admin.jsm(prefix=prefix).streams_info():
            found |= {f"{prefix}.STREAM.{verb}.{one.config.name}" for verb in STREAM_VERBS}
            found |= {f"{prefix}.CONSUMER.{verb}.{one.config.name}" for verb in CONSUMER_VERBS}
            found |= {*(one.config.subjects or ()), *(f"{prefix}.{subject}" for subject in one.config.subjects or ())}
    return sorted(pattern for pattern in found if not pattern.startswith(("_GR_", "_R_", "$NRG", "$JS.ACK")))


def forbidden(given: Permissions, patterns: list[str], rng: random.Random) -> list[str]:
    """Subjects that a role may not publish to; fewer than a connection keeps refusals of."""
    made = [concrete(pattern, rng) for pattern in patterns for _ in range(2 if "*" in pattern or ">" in pattern else 1)]
    found = sorted({subject for subject in made if not any(covers(allowed, subject) for allowed in given.publish)})
    return rng.sample(found, min(len(found), 900))


def publications_refused(connection: Connection) -> int:
    return sum(count for what, count in connection.refusals.counts.items() if what.startswith("publish"))


def requests(given: Permissions) -> list[str]:
    """What a role may ask for."""
    return [pattern for pattern in given.publish if pattern.startswith("api.")]


def never(subject: str, reply: str, payload: bytes, headers: bytes) -> None:
    raise AssertionError(f"heard {subject}")
