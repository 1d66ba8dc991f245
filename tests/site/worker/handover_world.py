"""A small world for the handover machine: workers, brokers that learn of subscriptions late, and every order of events.

Each site has a broker, and all but `p` a worker. What one broker sends to another comes in order; so does the news of
a subscription, on a way of its own. Timers count ticks, and are longer than anything is under way. `explore` tries
every order in which publications, commands, deliveries, timers, ticks and (if asked for) one crash can come.
"""

from __future__ import annotations

import pickle
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from nearcast.domain.topic import TopicSpec
from nearcast.domain.worker_id import WorkerId
from nearcast.nats.stamp import ANONYMOUS
from nearcast.protocol.worker import HostTopic, LeaveTopic, MembersChanged, SpoolEntry, SpoolPage, SpoolPageRequest
from nearcast.site.worker import handover_events as ho
from nearcast.site.worker.handover import HandoverMachine, Phase

TOPIC = "gps"
HOLD = SETTLE = 3
LATE = b"late"  # the id of a publication that comes when all else is over
Command = tuple[str, HostTopic | LeaveTopic | MembersChanged]  # and the site it goes to


def host(site: str, epoch: int, source: str | None = None, members: Sequence[str] = ("a",)) -> Command:
    spec = TopicSpec(TOPIC, tuple(members))
    return site, HostTopic(spec, epoch, WorkerId(source, "w") if source else None, HOLD)


def leave(site: str, epoch: int, towards: str | None) -> Command:
    return site, LeaveTopic(TOPIC, epoch, WorkerId(towards, "w") if towards else None, SETTLE)


def members(site: str, epoch: int, number: int) -> Command:
    return site, MembersChanged(TOPIC, epoch, number)


class WorkerSim:
    """Does what the machine says, as the worker does: I/O one after the other, all else at once."""

    def __init__(self, world: World, site: str) -> None:
        self.world, self.site = world, site
        self.machine: HandoverMachine | None = None
        self.handlers: set[str] = set()  # roles whose messages are taken
        self.io: deque[ho.Instruction] = deque()
        self.spool: list[ho.HandoverMessage] = []
        self.own_ids = 0

    def command(self, command: HostTopic | LeaveTopic | MembersChanged) -> None:
        if self.machine is None:
            if not isinstance(command, HostTopic):
                self.world.answered(command, "")
                return
            self.machine = HandoverMachine(TOPIC)
        self.handle(command)

    def handle(self, event: ho.Event) -> None:
        assert self.machine is not None
        for instruction in self.machine.handle(event, self.world.now):
            match instruction:
                case ho.Process(publication):
                    self.process(publication)
                case ho.Forward(towards, publication):
                    self.world.send(self.site, towards.site, ("handover", publication))
                case ho.Keep(publication):
                    self.spool.append(publication)
                case ho.StartTimer(seconds, later):
                    self.world.timers.append((self.world.now + int(seconds), self.site, self.world.crashes, later))
                case ho.Discard(publication):
                    self.world.discarded.append(publication)
                case ho.Refuse(command, reason):
                    self.world.answered(command, reason)
                case ho.Forget(returning):
                    assert not self.handlers
                    self.machine, self.spool = None, []
                    for command in returning:
                        self.command(command)
                case ho.AwaitIdle():
                    self.handle(ho.Idle())
                case ho.FetchPage(source, request):
                    self.world.send(self.site, source.site, ("page request", self.site, request))
                case _:
                    self.io.append(instruction)
                    if len(self.io) == 1:
                        self.next_io()

    def next_io(self) -> None:
        """Start the first I/O in line; what needs none is done at once."""
        while self.io and isinstance(self.io[0], ho.Done):
            command = self.io.popleft().command
            if isinstance(command, SpoolPageRequest):
                self.send_page()
            else:
                self.world.answered(command, "")
        if not self.io:
            return
        match self.io[0]:
            case ho.Subscribe(role):
                self.handlers.add(role)
                self.world.upwards(self.site, ("subscribe", role))
            case ho.Drain(role):
                self.world.upwards(self.site, ("unsubscribe", role))

    def flushed(self) -> None:
        """The broker has done what was asked, and what it had sent before has come."""
        match self.io[0]:
            case ho.Subscribe(role):
                event: ho.Event = ho.Subscribed(role)
            case ho.Drain(role):
                self.handlers.discard(role)
                event = ho.Drained(role)
        self.handle(event)  # what it instructs comes after what is in line
        self.io.popleft()
        self.next_io()

    def send_page(self) -> None:
        to = self.world.page_requests.pop(0)
        entries = [SpoolEntry(one.topic, n, one.id, one.payload) for n, one in enumerate(self.spool)]
        self.world.send(self.site, to, ("page", SpoolPage(entries)))

    def delivered(self, roles: tuple[str, ...], publication: ho.HandoverMessage) -> None:
        if "plain" in roles and "plain" in self.handlers:
            self.handle(ho.PlainReceived(publication))
        if "queue" in roles and "queue" in self.handlers:
            assert self.machine is not None
            if self.machine.take_publication(*publication, self.world.now):
                self.process(publication, self.machine.sends_copies)

    def process(self, publication: ho.HandoverMessage, copied: bool = False) -> None:
        assert self.machine is not None
        assert self.machine.phase not in (Phase.ABSENT, Phase.FORWARDING, Phase.FINISHING), "it has left"
        self.world.processed[publication.payload] += 1
        if not publication.id:
            self.own_ids += 1
            own_id = ANONYMOUS + f"{self.site}:{self.own_ids}".encode()
            publication = publication._replace(id=own_id)
        self.spool.append(publication)
        if copied:
            for site in self.world.workers:
                if site != self.site:
                    self.world.send(self.site, site, ("copy", publication))

    def copied(self, publication: ho.HandoverMessage) -> None:
        if "copies" in self.handlers:
            assert self.machine is not None
            if self.machine.take_copy(*publication, self.world.now):
                self.spool.append(publication)


class World:
    """All there is.

    slow_locally: what passes between a worker and its broker takes time, too.
    ticks_under_way: how many ticks may pass while something is under way.
    patient: the next command comes when nothing is under way, and before the next tick.
    """

    def __init__(
        self,
        before: Sequence[str],
        script: Sequence[Command],
        publications: Sequence[tuple[str, ho.HandoverMessage]],
        *,
        workers: str = "ab",
        preference: str = "abc",
        crashing: str = "",
        slow_locally: bool = False,
        ticks_under_way: int = 0,
        patient: bool = False,
    ) -> None:
        self.now = 0
        self.crashes, self.crashed = 0, ""
        self.waiting: Command | None = None
        self.slow_locally, self.ticks_under_way, self.patient = slow_locally, ticks_under_way, patient
        self.crashing, self.preference = crashing, preference
        self.processed: Counter[bytes] = Counter()
        self.discarded: list[ho.HandoverMessage] = []
        self.answers: list[tuple[str, str]] = []
        self.timers: list[tuple[int, str, int, ho.Event]] = []
        self.page_requests: list[str] = []
        self.publishing = {site for site, _ in publications}  # no other broker need know of subscriptions
        self.sites = sorted({*workers, *self.publishing})
        self.subscribed: dict[str, set[str]] = {site: set() for site in self.sites}  # at the own broker
        self.view = {site: {other: set() for other in self.sites if other != site} for site in self.sites}
        self.links: dict[tuple[str, str, str], deque[tuple[int, tuple]]] = {}
        self.workers = {site: WorkerSim(self, site) for site in workers}
        self.script: list[Command] = []
        self.publications: list[tuple[str, ho.HandoverMessage]] = []
        for site in before:
            self.workers[site].command(host(site, 1, None, before)[1])
        while any(self.links.values()):
            for link in [link for link, items in self.links.items() if items]:
                self.deliver(link)
        self.answers = []
        self.script, self.publications = list(script), list(publications)
        self.sent = [publication for _, publication in publications]
        self.hosting = dict.fromkeys(before, 1)  # as the agents know it: site -> epoch

    # What can happen

    def actions(self) -> Iterator[tuple]:
        for link, items in self.links.items():
            if items:
                yield ("deliver", link)
        if self.publications and (self.publications[0][1].id != LATE or not self.busy):
            yield ("publish",)
        if self.script and self.waiting is None and not (self.patient and any(self.links.values())):
            yield ("command",)
        due = [n for n, timer in enumerate(self.timers) if timer[0] <= self.now]
        yield from (("fire", n) for n in due)
        if self.crashing and self.busy:
            yield ("crash",)
        oldest = self.now + 1 - self.ticks_under_way
        if self.patient and self.script and self.waiting is None:
            return
        if self.timers and not due and all(born >= oldest for items in self.links.values() for born, _ in items):
            yield ("tick",)

    @property
    def busy(self) -> bool:
        return bool(self.timers or self.script or self.waiting or any(self.links.values()))

    def act(self, action: tuple) -> None:
        match action:
            case ("deliver", link):
                self.deliver(link)
            case ("publish",):
                site, publication = self.publications.pop(0)
                self.route(site, publication)
            case ("command",):
                self.waiting = self.script.pop(0)
                site, command = self.waiting
                self.workers[site].command(command)
            case ("fire", n):
                _, site, crashes, event = self.timers.pop(n)
                if crashes == self.crashes or site != self.crashed:
                    self.workers[site].handle(event)
            case ("crash",):
                self.crash()
            case ("tick",):
                self.now += 1
        if not self.slow_locally:
            while local := next((link for link, items in self.links.items() if items and link[1] == link[2]), None):
                self.deliver(local)

    def answered(self, command: object, reason: str) -> None:
        if self.waiting is not None and self.waiting[1] == command:
            site, self.waiting = self.waiting[0], None
            self.answers.append((f"{type(command).__name__} {site}", reason))
            if isinstance(command, HostTopic) and reason:
                self.script = []  # the move is rolled back: those that were there stay
            elif isinstance(command, HostTopic):
                self.hosting[site] = command.epoch
            elif isinstance(command, LeaveTopic) and not reason:
                self.hosting.pop(site, None)

    # Brokers

    def upwards(self, site: str, item: tuple) -> None:
        self.put(("up", site, site), item)

    def send(self, source: str, target: str, item: tuple) -> None:
        self.put(("up", source, source), ("send", target, item))

    def put(self, link: tuple[str, str, str], item: tuple) -> None:
        self.links.setdefault(link, deque()).append((self.now, item))

    def deliver(self, link: tuple[str, str, str]) -> None:
        kind, source, target = link
        _, item = self.links[link].popleft()
        if kind == "interest":
            verb, role = item
            (self.view[target][source].add if verb == "subscribe" else self.view[target][source].discard)(role)
        elif kind == "up":
            self.from_worker(source, item)
        elif kind == "down":
            self.to_worker(target, item)
        else:
            self.arrived(target, item)

    def from_worker(self, site: str, item: tuple) -> None:
        if item[0] == "send":
            _, target, content = item
            self.arrived(site, content) if target == site else self.put(("data", site, target), content)
            return
        verb, role = item
        (self.subscribed[site].add if verb == "subscribe" else self.subscribed[site].discard)(role)
        if role != "copies":
            for other in self.sites:
                if other != site and other in self.publishing:
                    self.put(("interest", site, other), item)
        self.put(("down", site, site), ("pong",))

    def route(self, site: str, publication: ho.HandoverMessage) -> None:
        """A publication at its publisher's broker: to one of the queue group, the own site first, and to the plain."""
        having = [other for other in self.preference if other != site and "queue" in self.view[site].get(other, ())]
        chosen = site if "queue" in self.subscribed[site] else next(iter(having), "")
        for other in self.sites:
            if other == site:
                self.arrived(site, ("publication", publication, chosen == site))
            elif other == chosen or "plain" in self.view[site][other]:
                self.put(("data", site, other), ("publication", publication, chosen == other))

    def arrived(self, site: str, item: tuple) -> None:
        if site not in self.workers:
            return
        if item[0] == "publication":
            _, publication, chosen = item
            roles = tuple(role for role in ("plain", "queue") if role in self.subscribed[site])
            roles = roles if chosen else tuple(role for role in roles if role == "plain")
            if roles:
                self.put(("down", site, site), ("delivered", roles, publication))
        elif item[0] != "copy" or "copies" in self.subscribed[site]:
            self.put(("down", site, site), item)

    def to_worker(self, site: str, item: tuple) -> None:
        worker = self.workers[site]
        match item:
            case ("pong",):
                worker.flushed()
            case ("delivered", roles, publication):
                worker.delivered(roles, publication)
            case ("copy", publication):
                worker.copied(publication)
            case ("handover", publication):
                if worker.machine is None:
                    self.discarded.append(publication)
                else:
                    worker.handle(ho.HandedOver(publication))
            case ("page request", to, request):
                if worker.machine is None or not worker.machine.is_hosted:
                    self.send(site, to, ("no page",))
                else:
                    self.page_requests.append(to)
                    worker.handle(request)
            case ("page", page) if worker.machine is not None and worker.machine.phase is Phase.COPYING:
                worker.handle(ho.PageReceived(page))
            case ("no page",) if worker.machine is not None and worker.machine.phase is Phase.COPYING:
                worker.handle(ho.CopyFailed("it does not have the topic"))

    # Crashes

    def crash(self) -> None:
        """A worker dies and is started again with what its agent knows; what it had is lost."""
        site, self.crashing = self.crashing, ""
        self.crashed = site
        self.crashes += 1
        for kind in ("up", "down"):
            self.links.pop((kind, site, site), None)
        for role in self.subscribed[site] - {"copies"}:
            for other in self.sites:
                if other != site and other in self.publishing:
                    self.put(("interest", site, other), ("unsubscribe", role))
        self.subscribed[site] = set()
        self.page_requests = []
        for other, worker in self.workers.items():  # whoever waits for its spool gives up after a while
            if worker.machine is not None and worker.machine.phase is Phase.COPYING and other != site:
                self.put(("down", other, other), ("no page",))
        if self.waiting is not None and self.waiting[0] == site:
            command, self.waiting = self.waiting, None
            self.answers.append((f"{type(command[1]).__name__} {site}", "crashed"))
            if isinstance(command[1], LeaveTopic):
                self.script.insert(0, command)  # the agent tries again
            else:
                self.script = []
        self.workers[site] = WorkerSim(self, site)
        if site in self.hosting:
            self.workers[site].command(host(site, self.hosting[site])[1])

    @property
    def quiet(self) -> bool:
        return not self.publications and not self.busy

    @property
    def owners(self) -> set[str]:
        return {site for site, worker in self.workers.items() if worker.machine is not None}


def explore(world: World, limit: int = 2_000_000) -> Iterator[World]:
    """Every world that can be reached and in which nothing more happens."""
    start = pickle.dumps(world)
    seen, stack = {start}, [start]
    while stack:
        state = stack.pop()
        current: World = pickle.loads(state)
        actions = list(current.actions())
        if not actions:
            assert current.quiet, "stuck"
            yield current
        for n, action in enumerate(actions):
            after = current if n == len(actions) - 1 else pickle.loads(state)
            after.act(action)
            following = pickle.dumps(after)
            if following not in seen:
                seen.add(following)
                stack.append(following)
        assert len(seen) < limit, "too many states"
