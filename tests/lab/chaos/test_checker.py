"""The judge of chaos runs, with ledgers made by hand: each kind of broken promise is seen, and told from the others."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nearcast.lab.chaos import checker
from nearcast.lab.chaos.checker import judge
from nearcast.lab.chaos.checker.evidence import matches, read_ledger
from nearcast.lab.chaos.checker.flows import longest_pause
from nearcast.lab.chaos.checker.judge import check, owed
from nearcast.lab.chaos.checker.verdict import Promise, Verdict

STEADY, FAULT, HEALED, NEXT = 100.0, 130.0, 160.0, 200.0
STORES = ("north", "east", "cloud")


class Made:
    """A run in which everything went well: one publisher, one subscriber, a publication a second; then spoiled.

    Each event is a dictionary in `events`; a test removes, changes or adds some.
    """

    def __init__(self, **topic: Any) -> None:
        self.events: list[dict[str, Any]] = []
        promised = {"name": "alerts", "managed_by": ["north"], "replicas": list(STORES), "quorum": 2, "processed": True}
        self.add("topic", 0, **promised | topic)
        self.add("phase", 90, phase="warm-up")
        self.add("phase", STEADY, phase="steady")
        self.add("phase", FAULT, phase="fault", kind="kill site", target=["west"], until=HEALED, touches=["west"],
                 stores=[])  # fmt: skip
        self.add("phase", HEALED, phase="recovery")
        self.add("phase", NEXT, phase="drain")
        self.add("client", 80, name="p", node="dev-north")
        self.add("client", 80, name="s", node="dev-east")
        self.add("subscribed", 85, subscriber="s", process=1, topic="alerts")
        for n in range(1, 101):
            self.publication(n, 99.0 + n)
        for site in STORES:
            self.add("store read", 210, site=site)
            self.add("history read", 210, site=site, topic="alerts", store=site, incomplete=False)

    def add(self, event: str, at: float, **fields: Any) -> None:
        self.events.append({"event": event, "at": at, **fields})

    def publication(self, n: int, at: float) -> None:
        who = {"publisher": "p", "n": n, "topic": "alerts"}
        self.add("published", at, **who, count=1, home="north", path="north/0")
        self.add("receipt", at + 0.1, publisher="p", n=n, id=f"p:{n}", stores=["north", "east"])
        self.add("processed", at + 0.01, **who, site="north", worker=7, late=False, attempt=1)
        self.deliver(n, at + 0.02)
        for site in STORES:
            self.add("stored", 210, **who, site=site, kind="publication", part=0, sequence=n)
            self.add("stored", 210, **who, site=site, kind="notification", part=0, sequence=n)
            self.add("history", 210, **who, site=site, part=0)

    def deliver(self, n: int, at: float, **fields: Any) -> None:
        event = {"subscriber": "s", "process": 1, "publisher": "p", "n": n, "part": 0, "topic": "alerts"}
        self.add("delivered", at, **event | {"id": f"p:{n};0", "home": "east", "late": False} | fields)

    def remove(self, event: str, *numbers: int, **fields: Any) -> None:
        wanted = fields.items()
        self.events = [
            one
            for one in self.events
            if not (one["event"] == event and (not numbers or one["n"] in numbers) and wanted <= one.items())
        ]

    def change(self, event: str, *numbers: int, **fields: Any) -> None:
        for one in self.events:
            if one["event"] == event and (not numbers or one["n"] in numbers):
                one.update(fields)


@pytest.fixture
def run() -> Made:
    return Made()


@pytest.fixture
def judged(tmp_path: Path) -> Any:
    def judge_run(run: Made) -> Verdict:
        # Two files, as of two processes: which one an event is in says nothing.
        for half, name in enumerate(("a.jsonl", "b.jsonl")):
            lines = [json.dumps(event) for event in run.events[half::2]]
            (tmp_path / name).write_text("\n".join(lines) + "\n")
        return check(read_ledger(tmp_path))

    return judge_run


def n_at(at: float) -> int:
    """The number of the publication that was made at a time."""
    return int(at - 99.0)


def test_a_run_without_loss_keeps_every_promise(run, judged) -> None:
    verdict = judged(run)
    assert (verdict.broken, verdict.losses) == ({}, [])
    assert verdict.kept
    assert verdict.counts["acknowledged"] == 100
    assert verdict.faults[0]["recover_seconds"] == pytest.approx(0.02, abs=0.001)
    assert verdict.faults[0]["published"] == verdict.faults[0]["receipts"] == 30


@pytest.mark.parametrize(
    ("at", "when"),
    [(110, None), (129, "start"), (131, "start"), (145, "middle"), (158, "end"), (180, "after")],
)
def test_a_loss_says_where_and_when(run, judged, at, when) -> None:
    n = n_at(at)
    run.remove("delivered", n)
    run.remove("processed", n)
    verdict = judged(run)
    assert verdict.broken == {Promise.NOT_PROCESSED: 1}
    (loss,) = verdict.losses
    assert (loss["publisher"], loss["n"]) == ("p", n)
    assert loss["when"] == (when or "before all faults")
    lost = verdict.faults[0]["lost"]
    assert lost == ([{"where": Promise.NOT_PROCESSED, "when": when, "count": 1}] if when else [])


def test_lost_between_processing_and_delivery(run, judged) -> None:
    run.remove("delivered", 50, 51)
    verdict = judged(run)
    assert verdict.broken == {Promise.NOT_DELIVERED: 2}
    assert {loss["subscriber"] for loss in verdict.losses} == {"s"}


def test_every_notification_of_a_publication_is_owed(run, judged) -> None:
    run.change("published", 50, count=2)
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}
    run.deliver(50, 149.1, part=1)
    assert judged(run).kept


def test_in_fewer_stores_than_the_quorum(run, judged) -> None:
    for site in ("north", "east"):
        run.remove("stored", 50, site=site)
        run.remove("history", 50, site=site)
    assert judged(run).broken == {Promise.NEVER_STORED: 1}


def test_a_ledger_without_evidence_keeps_no_promise(judged, tmp_path: Path) -> None:
    assert check(read_ledger(tmp_path)).broken == {Promise.NOT_JUDGED: 1}
    run = Made()
    run.remove("receipt")
    assert judged(run).broken == {Promise.STALLED: 1, Promise.NOT_JUDGED: 1}


def test_a_store_that_could_not_be_read_is_told_from_a_loss(run, judged) -> None:
    for site in ("north", "east"):
        run.remove("stored", site=site)
        run.remove("store read", site=site)
        run.add("store not read", 210, site=site, reason="TimeoutError")
    assert judged(run).broken == {Promise.UNREAD: 2}


def test_a_replica_that_lacks_what_others_have(run, judged) -> None:
    run.remove("stored", 50, 51, 52, site="cloud")
    assert judged(run).broken == {Promise.STORE_LACKS: 3}


def test_a_history_with_a_gap_unless_it_says_so(run, judged) -> None:
    run.remove("history", 50, site="cloud")
    assert judged(run).broken == {Promise.HISTORY_LACKS: 1}
    run.change("history read", incomplete=True)
    assert judged(run).kept


def test_a_dead_letter_is_told_from_a_loss(run, judged) -> None:
    run.remove("delivered", 50)
    run.add("dead", 150, publisher="p", n=50, topic="alerts", reason="ended by signal 9")
    assert judged(run).broken == {Promise.DEAD: 1}


def test_what_was_not_acknowledged_may_be_missing(run, judged) -> None:
    for event in ("receipt", "processed", "delivered", "stored", "history"):
        run.remove(event, 50)
    run.add("failed", 154, publisher="p", n=50, reason="QuorumError")
    verdict = judged(run)
    assert verdict.kept
    assert verdict.counts["refused or without a quorum"] == 1


def test_the_warm_up_and_the_time_before_a_subscription_are_not_judged(run, judged) -> None:
    run.publication(101, 99.5)
    run.remove("delivered", 101)
    run.remove("processed", 101)
    run.change("subscribed", at=110.0)
    run.remove("delivered", *range(1, n_at(113)))
    assert judged(run).kept
    run.remove("delivered", n_at(113))
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}


def test_delivered_twice(run, judged) -> None:
    run.deliver(50, 149.5)
    assert judged(run).broken == {Promise.TWICE: 1}


def test_a_process_that_took_over_may_get_the_last_messages_again(run, judged) -> None:
    run.deliver(50, 149.5, process=2)
    assert judged(run).kept


def test_what_a_spool_kept_is_owed(run, judged) -> None:
    run.remove("receipt", 50)
    run.remove("delivered", 50)
    assert judged(run).kept
    run.add("kept", 149, publisher="p", n=50)
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}


def test_a_killed_subscriber_is_owed_what_comes_after_it_is_back(run, judged) -> None:
    run.add("gone", FAULT, subscriber="s")
    run.remove("delivered", *range(n_at(FAULT - 9), n_at(HEALED)))
    run.add("subscribed", HEALED - 3.5, subscriber="s", process=2, topic="alerts")
    run.change("phase", touches=["dev-east"])
    assert judged(run).kept
    run.remove("delivered", n_at(HEALED))
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}
    run.deliver(n_at(HEALED), HEALED + 0.01)
    run.remove("delivered", n_at(FAULT - 11))
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}


def test_stored_twice(run, judged) -> None:
    who = {"publisher": "p", "n": 50, "topic": "alerts"}
    run.add("stored", 210, **who, site="cloud", kind="notification", part=0, sequence=500)
    assert judged(run).broken == {Promise.STORED_TWICE: 1}


def test_processed_twice_is_counted_and_allowed(run, judged) -> None:
    run.add("processed", 150, publisher="p", n=50, topic="alerts", site="east", worker=9, late=True, attempt=2)
    verdict = judged(run)
    assert verdict.kept
    assert verdict.counts["processed more than once"] == 1


def test_out_of_order_unless_late_or_not_acknowledged(run, judged) -> None:
    run.remove("delivered", 50)
    run.deliver(50, HEALED + 15.5)
    assert judged(run).broken == {Promise.DISORDER: 1}
    run.change("delivered", 50, late=True)
    assert judged(run).kept
    run.change("published", 50, at=HEALED + 15.0)
    assert judged(run).broken == {Promise.DISORDER: 1}, "it says that it is late, and is not"
    run.change("published", 50, at=HEALED + 1.0)
    run.change("delivered", 50, at=HEALED + 1.5)
    assert judged(run).kept, "ways change when links come back"
    run.change("delivered", 50, late=False)
    assert judged(run).broken == {Promise.DISORDER: 1}
    run.remove("receipt", 50)
    assert judged(run).kept


def test_a_topic_that_promises_order_is_processed_in_order_although_late(run, judged) -> None:
    run.change("processed", 50, at=155.5, late=True)
    run.change("delivered", 50, at=155.6, late=True)
    assert judged(run).kept
    run.change("topic", ordered=True)
    assert judged(run).broken == {Promise.PROCESSED_OUT_OF_ORDER: 1}
    run.change("receipt", 50, at=149.0 + judge.WAITED_FOR)
    assert judged(run).kept, "it was not in the stores in time"


def test_a_plain_topic_may_lose_but_not_repeat_or_reorder_on_one_path(judged) -> None:
    run = Made(quorum=0, replicas=[])
    run.add("topic", 0, name="other", replicas=list(STORES), quorum=2)
    run.add("published", 120, publisher="q", n=1, topic="other", count=1, home="north", path="north/0")
    run.add("receipt", 120.1, publisher="q", n=1, id="q:1", stores=[])
    for site in STORES:
        run.add("stored", 210, publisher="q", n=1, topic="other", site=site, kind="publication", part=0, sequence=1)
    run.remove("delivered", 40, 41)
    verdict = judged(run)
    assert verdict.kept
    assert verdict.counts["plain, not delivered"] == 2
    run.remove("delivered", 50)
    run.deliver(50, 155.5)
    assert judged(run).broken == {Promise.DISORDER: 1}
    fault = next(event for event in run.events if event.get("phase") == "fault")
    fault["kind"] = "cut site"
    assert judged(run).broken == {Promise.DISORDER: 1}, "another site was cut"
    fault["touches"] = ["east"]
    assert judged(run).kept, "it was in the link that was cut"
    fault["touches"] = ["west"]
    run.change("published", 50, path="north/1")  # another connection
    assert judged(run).kept
    run.deliver(60, 160.0)
    assert judged(run).broken == {Promise.TWICE: 1}


def test_a_device_without_ids_may_repeat_but_not_lose(judged) -> None:
    run = Made(anonymous=True)
    run.deliver(50, 155.5)
    assert judged(run).kept
    run.remove("delivered", 51)
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}


def test_two_owners_of_an_epoch(run, judged) -> None:
    for epoch, worker in ((1, "north/w1"), (1, "north/w1"), (2, "east/w1")):
        run.add("mark", 210, site="cloud", topic="alerts", epoch=epoch, worker=worker)
    assert judged(run).kept
    run.add("mark", 210, site="cloud", topic="alerts", epoch=2, worker="north/w1")
    assert judged(run).broken == {Promise.TWO_OWNERS: 1}
    run.change("topic", managed_by=["north", "east"])
    assert judged(run).kept


def test_fewer_replicas_than_asked_for(run, judged) -> None:
    run.add("replicas", 210, topic="alerts", replicas=["north", "cloud"])
    assert judged(run).broken == {Promise.REPLICAS: 1}


def test_progress_is_demanded_of_what_a_fault_does_not_touch(run, judged) -> None:
    during = range(n_at(FAULT + 5), n_at(FAULT + 20))
    for n in during:
        run.change("delivered", n, at=FAULT + 19.5 + n / 1000)
        run.change("receipt", n, at=FAULT + 19.5 + n / 1000)
    verdict = judged(run)
    assert verdict.broken == {Promise.STALLED: 2}  # deliveries and receipts
    assert verdict.faults[0]["stalled"] == 2
    for place in ("north", "dev-north"):
        run.change("phase", touches=[place])
        assert judged(run).kept
    run.change("phase", touches=["east"])  # the subscriber's home
    assert judged(run).broken == {Promise.STALLED: 1}
    run.change("phase", touches=[], stores=["east", "cloud"])  # too few stores are left for a receipt
    assert judged(run).broken == {Promise.STALLED: 1}


def test_a_flow_that_never_comes_back(run, judged) -> None:
    run.remove("delivered", *range(n_at(FAULT), 101))
    run.change("phase", touches=["north"])
    verdict = judged(run)
    assert verdict.broken == {Promise.NOT_DELIVERED: 100 - n_at(FAULT) + 1, Promise.NOT_RECOVERED: 1}


def test_how_long_a_fault_was_felt(run, judged) -> None:
    run.change("phase", touches=["north"])
    for n in range(n_at(HEALED - 8), n_at(HEALED + 4)):
        run.change("delivered", n, at=HEALED + 6.0 + n / 100)
    (fault,) = judged(run).faults
    assert fault["recover_seconds"] == pytest.approx(4.02)
    assert fault["caught_up_seconds"] == pytest.approx(6.0 + (n_at(HEALED) - 1) / 100)


def test_results_of_a_channel_go_to_those_whose_values_match(run, judged) -> None:
    run.add("subscribed", 85, subscriber="t", process=2, topic="alerts", values={"kind": "fire"})
    assert judged(run).kept
    run.change("published", 50, fields={"kind": "fire"})
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}
    run.deliver(50, 149.1, subscriber="t", process=2)
    assert judged(run).kept


def test_a_channel_is_kept_nowhere_has_no_order_and_passes_the_driver(judged) -> None:
    run = Made(replicas=[], processed=False, unordered=True, quorum=1, places=["driver"])
    run.remove("stored")
    run.remove("delivered", 50)
    run.deliver(50, 155.5)
    assert judged(run).kept
    for n in range(n_at(FAULT + 5), n_at(FAULT + 20)):
        run.change("delivered", n, at=FAULT + 19.5)
    assert judged(run).broken == {Promise.STALLED: 1}
    run.change("phase", touches=["driver"])
    assert judged(run).kept
    run.remove("delivered", 51)
    assert judged(run).broken == {Promise.NOT_DELIVERED: 1}


def test_owed_needs_no_stores(run, tmp_path: Path) -> None:
    run.remove("delivered", 50)
    run.remove("store read")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, run.events)))
    assert owed(read_ledger(tmp_path)) == 1


def test_a_line_torn_by_a_kill_is_counted(run, judged, tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl").write_text('{"event": "delivered", "at": 12')
    verdict = judged(run)
    assert verdict.kept
    assert verdict.counts["torn lines"] == 1


def test_the_command_exits_with_1_when_a_promise_was_broken(run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nearcast.lab.chaos.checker", str(tmp_path)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, run.events)))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    run.deliver(50, 149.5)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, run.events)))
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["broken"] == {Promise.TWICE: 1}


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [("a.*", "a.b", True), ("a.*", "a", False), ("a.*", "a.b.c", False), ("a.>", "a.b.c", True), ("a.>", "a", False),
     ("a", "a", True), ("a", "b", False), (">", "a", True), ("a.b", "a", False)],
)  # fmt: skip
def test_patterns(pattern: str, topic: str, fits: bool) -> None:
    assert matches(pattern, topic) is fits


def test_a_pause_counts_when_something_was_published_in_it() -> None:
    assert longest_pause([1.0, 2.0, 9.0], [1.0, 2.0, 3.0], 0.0, 10.0) == 7.0
    assert longest_pause([1.0, 2.0, 9.0], [1.0, 1.5, 9.5], 0.0, 10.0) == 1.0
    assert longest_pause([1.0], [0.5], 0.0, 10.0) == 1.0
    assert longest_pause([], [], 0.0, 10.0) == 0.0


def test_the_judge_shares_no_code_with_the_system() -> None:
    files = list(Path(checker.__file__).parent.glob("*.py"))
    allowed = {f"nearcast.lab.chaos.checker.{path.stem}" for path in files}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                name = node.module or ""
                assert name in allowed or name.partition(".")[0] in sys.stdlib_module_names, (path, name)
            elif isinstance(node, ast.Import):
                assert all(alias.name in sys.stdlib_module_names for alias in node.names), path


def test_a_fault_that_broke_nothing_is_no_evidence(run, judged) -> None:
    run.change("phase", target=["north"])  # where everything was processed all the time
    assert judged(run).broken == {Promise.NO_EFFECT: 1}
    run.change("phase", kind="kill devices", target=["dev-north"])
    assert judged(run).broken == {Promise.NO_EFFECT: 1}
    run.change("phase", kind="kill devices", target=["dev-east"])
    assert judged(run).kept
    run.change("client", node="dev-east")
    assert judged(run).broken == {Promise.NO_EFFECT: 1}
    run.change("topic", anonymous=True)  # of MQTT devices, which are another process at that node
    assert Promise.NO_EFFECT not in judged(run).broken


def test_a_topic_that_promises_order_may_wait_a_minute_for_what_was_never_stored(run, judged) -> None:
    """Publications failed while everything was down: newer ones of their source wait for them (chaos, seed 8)."""
    for n in range(n_at(HEALED), 101):
        run.change("delivered", n, at=NEXT + n / 100)
    assert judged(run).broken == {Promise.NOT_RECOVERED: 1}
    run.change("topic", ordered=True)
    assert judged(run).kept
