"""A tenant that floods waits for itself: what another one asks for is in the next turn of the loop, and in the next batch."""

from __future__ import annotations

import asyncio
import itertools
import select
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penstock.access.authenticator import Authenticator
from penstock.core import bulk_records, limits
from penstock.core.clock import SystemClock, yield_to_loop
from penstock.core.errors import TooMany
from penstock.core.events import EventKind
from penstock.core.job import JobSpec
from penstock.core.lifecycle import Arrow, State
from penstock.core.queue import Queue, QueueKey
from penstock.doors.jobs.base import JobsDoor
from penstock.doors.jobs.event_hub import EventHub, EventReader
from penstock.doors.jobs.session import JobsSession
from penstock.engine.bulk.staged_writes import PackedRows, StagedWrites
from penstock.engine.engine import Engine
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.dependencies import Adopt, CancelChildren
from penstock.engine.jobs.push import Publish, Push
from penstock.engine.jobs.settle import Ack, LeaseRef, Renew
from penstock.engine.queues.admin import MoveBatch
from penstock.engine.queues.group_limits import ConfigureGroup
from penstock.store.contract import FinishedMinutes, Page
from penstock.store.postgres import PostgresStore
from penstock.store.sqlite.job_groups import SqliteGroupLimits
from tests.support import postgres
from tests.support.tcp import all_commands

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penstock.engine.command import AnyCommand
    from penstock.engine.unit_of_work import UnitOfWork
    from tests.support.server import ServerProcess

pytestmark = pytest.mark.anyio
FLOOD, QUIET = QueueKey("flood", "q"), QueueKey("quiet", "q")


class Batches:
    """The commands that were answered by each transaction."""

    def __init__(self, engine: Engine) -> None:
        self.done: list[list[AnyCommand]] = []
        engine.signals.committed.subscribe(self._note)

    def _note(self, work: UnitOfWork) -> None:
        self.done.append([command for command, _ in work.answers])

    def of(self, command: AnyCommand) -> int:
        """Return the number of the batch that had a command, from 0."""
        return next(number for number, batch in enumerate(self.done) if command in batch)

    def before(self, command: AnyCommand) -> int:
        """Return how many commands were done before a command, or with it."""
        return sum(map(len, self.done[: self.of(command) + 1])) - 1


def some(count: int, data: bytes = b"{}") -> list[JobSpec]:
    return [JobSpec(data)] * count


async def test_a_push_is_in_the_next_batch_although_ten_thousand_wait(engine: Engine) -> None:
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, some(1))) for _ in range(10_000)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.of(quiet) == 0
    await asyncio.gather(*flood)


async def test_pushes_of_many_jobs_do_not_make_one_long_transaction(engine: Engine) -> None:
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, some(500))) for _ in range(20)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_large_payloads_do_not_make_one_long_transaction(engine: Engine) -> None:
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, some(1, b'"' + b"x" * 1_000_000 + b'"'))) for _ in range(20)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_a_claim_does_not_wait_for_claims_of_many_jobs(engine: Engine) -> None:
    await engine.run(Push(FLOOD, some(10_000)))
    await engine.run(Push(QUIET, some(1)))
    batches = Batches(engine)
    flood = [engine.run(Claim(FLOOD, 500)) for _ in range(20)]
    quiet = Claim(QUIET)
    deliveries = await engine.run(quiet)
    assert len(deliveries) == 1
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_a_heartbeat_is_heard_before_leases_are_judged_whatever_waits(engine: Engine) -> None:
    await engine.run(Push(QUIET, some(1)))
    ((job, _),) = await engine.run(Claim(QUIET, lease_ms=1_000))
    batches = Batches(engine)
    flood = [engine.run(Push(QUIET, some(500))) for _ in range(20)]
    word = Renew("quiet", [LeaseRef(job.id, job.token)], [60_000])
    assert await engine.run(word) == [None]
    assert batches.of(word) == 0
    await asyncio.gather(*flood)


async def test_slices_of_long_operations_do_not_make_one_long_transaction(engine: Engine) -> None:
    jobs = [await engine.run(Push(FLOOD, some(500))) for _ in range(20)]
    batches = Batches(engine)
    flood = [engine.run(MoveBatch(FLOOD, Arrow.DRAIN, (State.WAITING,), [each.id for each in part])) for part in jobs]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 2
    assert sum(map(len, await asyncio.gather(*flood))) == 10_000


async def test_a_push_counts_by_its_dependencies(engine: Engine) -> None:
    needed = tuple(job.id for job in await engine.run(Push(FLOOD, some(100))))
    batches = Batches(engine)
    flood = [engine.run(Push(FLOOD, [JobSpec(b"{}", needs=needed)] * 5)) for _ in range(20)]
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_settlements_of_many_jobs_do_not_make_one_long_transaction(engine: Engine) -> None:
    await engine.run(Push(FLOOD, some(10_000)))
    await engine.run(Push(QUIET, some(1)))
    ((job, _),) = await engine.run(Claim(QUIET))
    deliveries = [await engine.run(Claim(FLOOD, 500)) for _ in range(20)]
    batches = Batches(engine)
    flood = [
        engine.run(Ack("flood", [LeaseRef(each.job.id, each.job.token) for each in some_], [None] * 500))
        for some_ in deliveries
    ]
    quiet = Ack("quiet", [LeaseRef(job.id, job.token)], [None])
    assert await engine.run(quiet) == [None]
    assert batches.before(quiet) <= 2
    await asyncio.gather(*flood)


async def test_looking_up_ancestors_is_spread_over_batches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "flow_lookups_batch_max", 10)
    chain = await engine.run(Push(FLOOD, some(12)))
    for child, parent in itertools.pairwise(chain):
        await engine.run(Adopt("flood", child.id, parent.id))
    (child,) = await engine.run(Push(FLOOD, some(1)))
    batches = Batches(engine)
    flood = [Adopt("flood", child.id, chain[0].id) for _ in range(5)]
    await asyncio.gather(*(engine.run(each) for each in flood))
    assert [batches.of(each) for each in flood] == [0, 1, 2, 3, 4]


async def test_cancelling_children_is_spread_over_batches(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "flow_lookups_batch_max", 10)
    parents = []
    for _ in range(3):
        needs = tuple(job.id for job in await engine.run(Push(FLOOD, some(10))))
        (parent,) = await engine.run(Push(FLOOD, [JobSpec(b"{}", needs=needs)]))
        parents.append(parent)
    batches = Batches(engine)
    flood = [CancelChildren("flood", parent.id) for parent in parents]
    assert await asyncio.gather(*(engine.run(each) for each in flood)) == [10, 10, 10]
    assert [batches.of(each) for each in flood] == [0, 1, 2]


async def test_limited_groups_are_counted_once_for_a_batch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "limited_groups_max", 3)
    counted = 0
    count = SqliteGroupLimits.groups_limited

    async def counting(self: SqliteGroupLimits, queue: Queue) -> int:
        nonlocal counted
        counted += 1
        return await count(self, queue)

    monkeypatch.setattr(SqliteGroupLimits, "groups_limited", counting)
    await engine.run(Push(FLOOD, some(1)))

    def pause(group: str, *, paused: bool) -> ConfigureGroup:
        return ConfigureGroup(FLOOD, group, lambda before, _now: msgspec.structs.replace(before, paused=paused))

    commands = [pause("a", paused=True), pause("b", paused=True), pause("a", paused=False)]
    commands += [pause(group, paused=True) for group in "cde"]
    outcomes = await asyncio.gather(*(engine.run(each) for each in commands), return_exceptions=True)
    assert outcomes[:5] == [True] * 5
    assert isinstance(outcomes[5], TooMany)
    assert counted == 1


async def test_one_namespace_alone_is_done_in_the_order_it_came(engine: Engine) -> None:
    pushes = [Push(FLOOD, some(300)) for _ in range(40)]
    batches = Batches(engine)
    await asyncio.gather(*(engine.run(push) for push in pushes))
    assert [command for batch in batches.done for command in batch] == pushes
    assert len(batches.done) <= 5  # as few transactions as a bound on their length allows


@pytest.fixture
async def lanes() -> AsyncIterator[Engine]:
    """An engine on PostgreSQL, where pushes have a lane of their own while the server is busy."""
    url = await postgres.make_database()
    store = await PostgresStore.open(url, SystemClock())
    running = Engine(store, store.clock)
    running.start()
    yield running
    await running.close()
    await store.close()
    await postgres.drop_database(url)


async def test_lanes_on_postgres_have_shares_too(lanes: Engine) -> None:
    await lanes.run(Push(FLOOD, some(1)))
    batches = Batches(lanes)
    flood = [lanes.run(Push(FLOOD, some(500))) for _ in range(30)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    done = sum(map(len, batches.done))
    quiet = Push(QUIET, some(1))
    await lanes.run(quiet)
    # A batch of the flood may have been under way; then each namespace has its share.
    assert batches.before(quiet) - done <= 10
    await asyncio.gather(*flood)


def share_the_loop(engine: Engine) -> None:
    """Have both namespaces be active."""
    engine.fair_share.begin("flood")
    engine.fair_share.begin("quiet")


async def test_a_batch_does_not_wait_for_what_a_flood_brings_in_every_turn(engine: Engine) -> None:
    share_the_loop(engine)
    batches = Batches(engine)
    flood: list[Any] = []

    async def go_on() -> None:
        for _ in range(300):
            flood.append(engine.run(Push(FLOOD, some(1))))
            await yield_to_loop(1)

    flooding = asyncio.create_task(go_on())
    await yield_to_loop(3)
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    assert batches.before(quiet) <= 20
    await flooding
    await asyncio.gather(*flood)


async def test_a_push_is_not_in_the_transaction_of_another_tenants_bulk_push(engine: Engine) -> None:
    share_the_loop(engine)
    batches = Batches(engine)
    flood = Push(FLOOD, some(1_000))
    stored = engine.run(flood)
    quiet = Push(QUIET, some(1))
    await engine.run(quiet)
    await stored
    assert batches.of(quiet) < batches.of(flood)


async def test_staged_rows_of_a_tenant_have_their_share_of_the_transactions_of_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published counts by its rows and bytes: a transaction with a push of another tenant has one slice, not two."""
    share_the_loop(engine)
    done: list[list[AnyCommand]] = []
    apply, body = engine._batcher._apply, bulk_records.pack({"data": [b"x" * 1_000] * 500})

    async def noted(work: UnitOfWork, commands: list[AnyCommand]) -> None:
        done.append(list(commands))
        await apply(work, commands)

    monkeypatch.setattr(engine._batcher, "_apply", noted)
    stages = StagedWrites(engine)
    stages.start()
    await stages.stage("flood", "t", 0, [PackedRows("q", 500, body)] * 20)
    committed = asyncio.create_task(stages.commit("flood", "k", ["t"], 60_000))
    while not committed.done():
        await engine.run(Push(QUIET, some(1)))
    assert (await committed).published
    await stages.stop()
    mixed = [batch for batch in done if any(type(each) is Push for each in batch)]
    assert max(sum(type(each) is Publish for each in batch) for batch in mixed) <= 1
    assert sum(type(each) is Publish for batch in done for each in batch) > 20


async def test_events_are_passed_on_in_shorter_slices_while_tenants_share_the_loop(engine: Engine) -> None:
    share_the_loop(engine)
    hub, taken, per_turn = EventHub(engine.feed, engine.clock, engine.fair_share), 0, []

    def take(_message: Any, _told: Any) -> bool:
        nonlocal taken
        taken += 1
        return True

    readers = [EventReader(lambda told: told.seq, take, namespace="flood") for _ in range(10)]
    for reader in readers:
        hub.want(reader, frozenset({EventKind.JOB_PUSHED}))
    await engine.run(Push(FLOOD, some(100)))
    while taken < 1_000:
        before = taken
        await yield_to_loop(1)
        per_turn.append(taken - before)
    assert max(per_turn) <= limits.fan_out_waited_messages + len(readers)
    for reader in readers:
        hub.want(reader, frozenset())


class Readers:
    """So many readers of the events of a namespace, and how many messages they were offered."""

    def __init__(self, hub: EventHub, namespace: str, count: int) -> None:
        self.taken = 0
        self._hub = hub
        self._readers = [EventReader(lambda told: told.seq, self._take, namespace=namespace) for _ in range(count)]
        for reader in self._readers:
            hub.want(reader, frozenset({EventKind.JOB_PUSHED}))

    def _take(self, _message: Any, _told: Any) -> bool:
        self.taken += 1
        return True

    def leave(self) -> None:
        for reader in self._readers:
            self._hub.want(reader, frozenset())


async def test_events_wait_for_a_small_request_of_another_tenant(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    share_the_loop(engine)
    hub = EventHub(engine.feed, engine.clock, engine.fair_share)
    readers, may_end = Readers(hub, "flood", 10), asyncio.Event()

    async def small() -> None:
        engine.fair_share.enter("quiet")
        await may_end.wait()
        engine.fair_share.leave()

    quiet = asyncio.create_task(small())
    await yield_to_loop(2)
    await engine.run(Push(FLOOD, some(1_000)))
    await yield_to_loop()
    assert readers.taken == limits.fan_out_shared_messages
    may_end.set()
    await quiet
    while readers.taken < 10_000:
        await yield_to_loop(1)
    readers.leave()


async def test_events_of_a_tenant_do_not_wait_for_those_of_another_one(engine: Engine) -> None:
    share_the_loop(engine)
    hub = EventHub(engine.feed, engine.clock, engine.fair_share)
    flood, quiet = Readers(hub, "flood", 50), Readers(hub, "quiet", 1)
    for _ in range(5):
        await engine.run(Push(FLOOD, some(1_000)))
    await engine.run(Push(QUIET, some(1)))
    assert quiet.taken == 1
    assert flood.taken < 5_000 * 50 / 2
    flood.leave()
    quiet.leave()


async def test_requests_of_a_tenant_wait_for_its_own_events(engine: Engine) -> None:
    share_the_loop(engine)
    hub = EventHub(engine.feed, engine.clock, engine.fair_share)
    readers = Readers(hub, "flood", 50)
    await engine.run(Push(FLOOD, some(1_000)))
    assert engine.fair_share.begin("quiet") is None
    place = engine.fair_share.begin("flood")
    assert place is not None
    await place
    assert readers.taken >= 50 * (1_000 - limits.fan_out_behind_events)
    readers.leave()


async def test_a_long_backlog_of_events_is_not_passed_on_in_one_step(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is above the bound is offered at once, and no more."""
    monkeypatch.setattr(limits, "fan_out_events_max", 1_000)
    hub = EventHub(engine.feed, engine.clock)
    readers, taken = Readers(hub, "flood", 100), []
    engine.feed.listen(lambda _block: taken.append(readers.taken))
    await asyncio.gather(*(engine.run(Push(FLOOD, some(500))) for _ in range(8)))
    steps = [later - before for before, later in zip([0, *taken], taken, strict=False)]
    assert max(steps) <= 100 * 500 + limits.fan_out_turn_messages
    while readers.taken < 8 * 500 * 100:
        await yield_to_loop(1)
    readers.leave()


async def test_a_listing_waits_for_a_small_request_of_another_tenant(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks before each part."""
    monkeypatch.setattr(limits, "share_wait_ms", 60_000)
    monkeypatch.setattr(limits, "share_small_ms", 60_000)
    await engine.run(Push(FLOOD, some(10)))
    queue = engine.store.queue_find(FLOOD)
    assert queue is not None
    share_the_loop(engine)
    done, may_end = asyncio.Event(), asyncio.Event()

    async def small() -> None:
        engine.fair_share.enter("quiet")
        await may_end.wait()
        engine.fair_share.leave()
        done.set()

    quiet = asyncio.create_task(small())
    await yield_to_loop(2)
    listing = asyncio.create_task(JobsDoor(engine).listed(Page(queue, (State.WAITING,), 10), lambda job, _: done.is_set()))
    await yield_to_loop()
    assert not listing.done()
    may_end.set()
    assert all(await listing)
    await quiet


async def test_one_listing_of_a_namespace_is_read_at_a_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in (FLOOD, QUIET):
        await engine.run(Push(queue, some(10)))
    share_the_loop(engine)
    under_way = {"flood": 0, "quiet": 0}
    most, read, may_end = dict(under_way), engine.store.job_page, asyncio.Event()

    async def job_page(page: Page) -> Any:
        namespace = page.queue.key.namespace
        under_way[namespace] += 1
        most[namespace] = max(most[namespace], under_way[namespace])
        await may_end.wait()
        under_way[namespace] -= 1
        return await read(page)

    monkeypatch.setattr(engine.store, "job_page", job_page)
    door = JobsDoor(engine)

    def listing(key: QueueKey) -> asyncio.Task[list[int]]:
        queue = engine.store.queue_find(key)
        assert queue is not None
        return asyncio.create_task(door.listed(Page(queue, (State.WAITING,), 10), lambda job, _: job.id))

    listings = [listing(FLOOD) for _ in range(20)]
    quiet = listing(QUIET)
    await yield_to_loop()
    assert under_way == {"flood": limits.share_large_requests, "quiet": 1}
    may_end.set()
    assert all(len(found) == 10 for found in await asyncio.gather(quiet, *listings))
    assert most == {"flood": limits.share_large_requests, "quiet": 1}


@pytest.mark.parametrize("method", ["priority_counts", "prioritized_count", "finished_minutes", "group_count"])
async def test_one_count_of_a_namespace_is_read_at_a_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    for queue in (FLOOD, QUIET):
        await engine.run(Push(queue, some(1)))
    share_the_loop(engine)
    begun, may_end = [], asyncio.Event()

    async def count(queue: Queue, *_: object, **__: object) -> Any:
        begun.append(queue.key.namespace)
        await may_end.wait()
        return {"finished_minutes": FinishedMinutes(), "priority_counts": {}}.get(method, 0)

    monkeypatch.setattr(engine.store, method, count)
    commands = all_commands(engine)
    fields = {
        "priority_counts": {"cmd": "GetCountsPerPriority"},
        "prioritized_count": {"cmd": "GetJobCounts"},
        "finished_minutes": {"cmd": "Metrics", "type": "completed"},
        "group_count": {"cmd": "GetGroupsJobsCount"},
    }[method]

    def ask(namespace: str) -> asyncio.Task[dict[str, Any]]:
        session = JobsSession(commands, Authenticator(engine.clock), namespace=namespace)
        return asyncio.create_task(session.handle({"queue": "q", **fields}))

    flood = [ask("flood") for _ in range(20)]
    quiet = ask("quiet")
    await yield_to_loop()
    assert sorted(begun) == ["flood"] * limits.share_large_requests + ["quiet"]
    may_end.set()
    assert all(reply["ok"] for reply in await asyncio.gather(quiet, *flood))


async def test_a_long_listing_is_shown_in_slices(engine: Engine) -> None:
    await engine.run(Push(FLOOD, some(1_000)))
    queue = engine.store.queue_find(FLOOD)
    assert queue is not None
    turn, turns = 0, []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await yield_to_loop(1)

    counting = asyncio.create_task(count_turns())
    await JobsDoor(engine).listed(Page(queue, (State.WAITING,), 1_000), lambda _job, _payload: turns.append(turn))
    counting.cancel()
    assert len(turns) == 1_000
    assert max(turns.count(each) for each in set(turns)) <= limits.view_slice_jobs


async def test_events_for_many_readers_are_passed_on_in_slices(engine: Engine) -> None:
    hub, per_turn = EventHub(engine.feed, engine.clock), []
    readers, taken = 20, 0

    def take(_message: Any, _told: Any) -> bool:
        nonlocal taken
        taken += 1
        return True

    seen: list[int] = []

    def note(seq: int, _told: Any) -> bool:
        seen.append(seq)
        return True

    first = EventReader(lambda told: told.seq, note, namespace="flood")
    for reader in (first, *(EventReader(lambda told: told.seq, take, namespace="flood") for _ in range(readers - 1))):
        hub.want(reader, frozenset({EventKind.JOB_PUSHED}))
    await engine.run(Push(FLOOD, some(1_000)))
    while len(seen) < 1_000:
        before = taken
        await yield_to_loop(1)
        per_turn.append(taken - before)
    assert max(per_turn) <= limits.fan_out_turn_messages + readers
    assert seen == sorted(seen)
    assert taken == 1_000 * (readers - 1)
    for reader in list(hub._readers[EventKind.JOB_PUSHED]["flood"]):
        hub.want(reader, frozenset())


def http(namespace: str, body: bytes) -> bytes:
    head = (
        f"POST /queues/q/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Namespace: {namespace}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def test_large_bodies_of_a_tenant_are_answered_after_another_tenants_pushes(server: ServerProcess) -> None:
    """Over a real server: of what the flood has sent, little is answered while a small push waits."""
    large, count = b'{"data":"' + b"x" * 1_000_000 + b'"}', 40
    with ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))

        quiet, flood = connect(), [connect() for _ in range(count)]

        def push() -> None:
            quiet.sendall(http("fair-quiet", b'{"data":1}'))
            assert b"200 OK" in quiet.recv(65_536)

        push()
        for each in flood:  # all but the last byte, so that the bodies are complete at the same moment
            each.sendall(http("fair-flood", large)[:-1])
        for each in flood:
            each.sendall(b"}")
        waited_for = []
        waiting = flood
        while waiting:
            push()
            answered = select.select(waiting, [], [], 0)[0]
            waiting = [each for each in waiting if each not in answered]
            waited_for.append(len(answered))
        for each in flood:
            assert b"200 OK" in each.recv(65_536)
    # Large bodies are parsed, written and answered one by one: every push comes between two of them, or nearly so.
    assert sorted(waited_for)[len(waited_for) // 2] <= 3
    assert len(waited_for) >= count // 4


STREAMS, JOBS, EVENT = 100, 2_000, b"\ndata: "


def test_events_of_a_tenant_are_sent_before_the_backlog_of_another_one(server: ServerProcess) -> None:
    """Over a real server, with shares of their real size: 200,000 messages of the flood wait when the other tenant pushes."""
    with ExitStack() as stack:

        def connect(namespace: str, path: str = "") -> socket.socket:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            if path:
                made.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Namespace: {namespace}\r\n\r\n".encode())
                read_until(made, b"connected")
            return made

        readers = [connect("events-flood", "/events") for _ in range(STREAMS)]
        reader, pushing = connect("events-quiet", "/events"), connect("events-quiet")
        pushing.sendall(http("events-quiet", b'{"data":1}'))
        read_until(reader, b'"pushed"')
        flood = b'{"jobs":[%s]}' % b",".join([b'{"data":1}'] * JOBS)
        bulk = http("events-flood", flood).replace(b"/queues/q/jobs", b"/queues/q/jobs/bulk", 1)
        # One after the other over one connection: when this test is given the processor again does not matter.
        pushing.sendall(bulk + http("events-quiet", b'{"data":2}'))
        read_until(reader, b'"pushed"')
        seen = arrived(readers[-1])
        assert seen.count(EVENT) < JOBS
        while seen.count(EVENT) < JOBS:  # and none is lost
            select.select([readers[-1]], [], [], 60)
            found = arrived(readers[-1])
            assert found
            seen += found


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """Read until what has come contains something."""
    found = b""
    while mark not in found:
        received = connection.recv(65_536)
        assert received, "the connection was closed"
        found += received
    return found


def arrived(connection: socket.socket) -> bytes:
    """Read what has arrived by now."""
    found = b""
    while select.select([connection], [], [], 0)[0]:
        received = connection.recv(1 << 20)
        assert received, "the connection was closed"
        found += received
    return found
