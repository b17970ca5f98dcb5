"""Claiming jobs, and waiting in line for them.

Everybody who asks for jobs lines up at their queue; then the line is served from the front with what the queue has. Whoever is
not served and does not want to wait is answered with nothing; whoever waits stays in line. A waiting caller costs a place in a
dictionary and a booked alarm, nothing else: it is looked at again only when its queue got something to claim.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core import limits
from penstock.core.errors import QueueMoving, TooMany
from penstock.core.events import EventKind
from penstock.core.ids import to_uuid
from penstock.core.job import Delivery, Job, Payload, details_of, put_details
from penstock.core.lifecycle import Arrow
from penstock.engine.command import Command, IfUnknown
from penstock.engine.jobs.settle import LeaseRef, Release
from penstock.engine.queues.group_limits import forget_unused, reopen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.clock import Alarm
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.jobs.queue_limits import Allowance
    from penstock.engine.sharding.engine import AnyEngine
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import Capabilities


class ClaimNote(Protocol):
    """What is written down of a claim, by the transaction that makes it."""

    async def write(self, engine: Engine, work: UnitOfWork, jobs: Sequence[Job]) -> None:
        """Write down which jobs were leased."""

    def taken_back(self) -> Command[Any]:
        """Return what gives the jobs back, and takes the note along."""


class Claim(Command[list[Delivery]]):
    """Ask for up to ``count`` jobs, waiting up to ``wait_ms`` for the first.

    ``lease_ms``: how long they are the caller's without a heartbeat (None: the queue's stall interval).
    """

    __slots__ = (
        "alarm", "count", "direct", "engine", "gone", "lease_ms", "note", "owner", "queue", "wait_ms", "waits_until"
    )  # fmt: skip

    if_unknown = IfUnknown.PULL

    def __init__(
        self,
        queue: QueueKey,
        count: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        owner: str | None = None,
    ) -> None:
        self.queue = queue
        self.count = count
        self.wait_ms = wait_ms
        self.lease_ms = lease_ms
        self.owner = owner
        self.alarm: Alarm | None = None
        self.waits_until: int | None = None  #: steady ms, once it was in line
        self.direct = False  #: it is served by the database, ready list or not
        self.engine: Engine | None = None  #: the one that has it since its queue moved to another shard
        self.gone = False  #: nobody waits for the answer any more
        #: Written down with it. Then the answer has the first job only, without its payload, and does not wait for the disk.
        self.note: ClaimNote | None = None

    def tenant(self) -> str | None:
        """Return its namespace."""
        return self.queue.namespace

    def weight(self) -> int:
        """Return how many jobs it asks for."""
        return self.count


class RecheckQueue(Command[None]):
    """Look again at the line of a queue: its rate limit allows more by now."""

    __slots__ = ("queue",)

    def __init__(self, queue: QueueKey) -> None:
        self.queue = queue


class ClaimWaiters:
    """Callers that wait for a job, first come first served."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lines: dict[QueueKey, dict[Claim, None]] = {}
        self._nudges: dict[QueueKey, tuple[int, Alarm]] = {}  #: the next look at a line, by the steady clock
        self._closed = False
        self._held: dict[str, int] = {}  #: how many wait of each namespace
        self.size = 0

    def line(self, queue: QueueKey) -> Iterable[Claim]:
        """Return the callers that wait at a queue, in order."""
        return self._lines.get(queue, ())

    def waiting(self, queue: QueueKey) -> int:
        """Return how many wait at a queue."""
        return len(self._lines.get(queue, ()))

    def enter(self, claim: Claim) -> None:
        """Join the line until served, tired of waiting, or gone."""
        if claim.future.done():
            return
        if self._closed or claim.gone:  # it may have left before it was in line
            claim.future.set_result([])
            return
        namespace = claim.queue.namespace
        held = self._held.get(namespace, 0)
        try:
            self._check_room(namespace, held)
        except TooMany as error:
            claim.future.set_exception(error)
            return
        self._lines.setdefault(claim.queue, {})[claim] = None
        self.size += 1
        self._held[namespace] = held + 1
        clock = self._engine.clock
        if claim.waits_until is None:
            claim.waits_until = clock.steady_ms() + claim.wait_ms
        claim.alarm = clock.call_at(claim.waits_until, lambda: self._tired(claim))

    def leave(self, claim: Claim) -> bool:
        """Step out of the line; False if the caller was not in it."""
        line = self._lines.get(claim.queue)
        if line is None or claim not in line:
            return False
        del line[claim]
        self.size -= 1
        held = self._held.pop(claim.queue.namespace) - 1
        if held:
            self._held[claim.queue.namespace] = held
        if not line:
            del self._lines[claim.queue]
        if claim.alarm is not None:
            claim.alarm.cancel()
        return True

    def _check_room(self, namespace: str, held: int) -> None:
        """Raise TooMany, or NamespaceLimit."""
        if self.size >= limits.waiters_max:
            raise TooMany("Too many callers wait for jobs. Poll without a timeout, or retry later.")
        shares = self._engine.shares
        shares.check("callers that wait for jobs", namespace, most=limits.waiters_max, taken=self.size, held=held)

    def look_around(self) -> None:
        """See which queues have moved: who waits at one that is gone is sent after it, the others' lines are looked at."""
        store, steady_ms = self._engine.store, self._engine.clock.steady_ms()
        for queue in list(self._lines):
            away = store.queue_away(queue)
            layout = store.layout
            if away is None and store.queue_find(queue) is None and layout is not None:
                gone = layout.has_moved and not layout.takes(queue)
            else:
                gone = away is not None and not away.move.standing.is_seen
            if not gone:
                self.nudge_at(queue, steady_ms)
                continue
            for claim in list(self.line(queue)):
                self.leave(claim)
                claim.wait_ms = max(0, (claim.waits_until or steady_ms) - steady_ms)
                claim.waits_until = None  # clocks of shards differ
                self._engine.send_on(claim, QueueMoving())

    def send_everybody_home(self) -> None:
        """Answer everybody with nothing, those who come later too, because the server is closing."""
        self._closed = True
        for claim in [claim for line in self._lines.values() for claim in line]:
            self._tired(claim)

    def nudge_all(self) -> None:
        """Have a look at every line, should nobody have told us that there is something to claim."""
        for queue in list(self._lines):
            self.nudge_at(queue, self._engine.clock.steady_ms())

    def nudge_ready(self, work: UnitOfWork) -> None:
        """Have a look at the lines of the queues in which a piece of work has made something claimable."""
        for number in work.ready:
            queue = work.tx.queue_by_number(number).key
            if queue in self._lines:
                self.nudge_at(queue, self._engine.clock.steady_ms())

    def nudge_at(self, queue: QueueKey, steady_ms: int) -> None:
        """Book another look at a line. Of several the earliest counts: each look books the next one, if there is need."""
        booked = self._nudges.get(queue)
        if booked is not None:
            if booked[0] <= steady_ms:
                return
            booked[1].cancel()  # it waits for a rate limit, which may have been changed since, as any other setting
        self._nudges[queue] = steady_ms, self._engine.clock.call_at(steady_ms, lambda: self._nudge(queue))

    def _nudge(self, queue: QueueKey) -> None:
        self._nudges.pop(queue, None)
        if queue in self._lines:
            self._engine.run_unheard(RecheckQueue(queue))

    def _tired(self, claim: Claim) -> None:
        if self.leave(claim) and not claim.future.done():
            claim.future.set_result([])


async def claim(engine: Engine, work: UnitOfWork, commands: Sequence[Claim]) -> None:
    """Serve the lines of all queues that somebody asks at, or that got something while somebody waits."""
    asking: dict[QueueKey, list[Claim]] = {}
    for command in commands:
        if not command.future.done():
            asking.setdefault(command.queue, []).append(command)
    if engine.room.size and work.ready:
        for number in work.ready:
            key = engine.store.queue_by_number(number).key
            if engine.room.waiting(key):
                asking.setdefault(key, [])
    if asking:
        await work.flush()  # so that counts and queries see what the rest of the batch has done
    for key, newcomers in asking.items():
        await _serve(engine, work, key, newcomers)
    if commands:
        work.timings.append((engine.stats.pull_time, len(commands)))


async def recheck_queue(_engine: Engine, work: UnitOfWork, commands: Sequence[RecheckQueue]) -> None:
    """Have the lines of some queues looked at, in this batch."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            work.ready.add(queue.number)
        work.answer(command, None)


async def _serve(engine: Engine, work: UnitOfWork, key: QueueKey, newcomers: list[Claim]) -> None:
    """Serve the line of one queue: those who wait already, then the newcomers."""
    room = engine.room
    queue = work.tx.queue_find(key)
    if queue is None:
        _turn_away(engine, work, [each for each in newcomers if not work.refuse_elsewhere(each, key)])
        return
    fast = engine.fast
    if fast is not None and fast.serve(work, queue, newcomers):
        return
    allowance = await engine.throttle.allowance(work, queue)
    reopens_at = await reopen(work, queue) if queue.settings.limits_groups else None
    jobs, more = await _next_jobs(work, queue, allowance.jobs, chain(room.line(key), newcomers), engine.store.capabilities)
    line = chain(room.line(key), newcomers)
    served: set[Claim] = set()
    given = 0
    while given < len(jobs):
        caller = next(line, None)
        if caller is None:
            break
        if caller.future.done():
            continue
        share = jobs[given : given + caller.count]
        given += len(share)
        _lease(work, queue, caller, [job for job, _ in share])
        if caller.note is None:
            deliveries = [Delivery(job, payload) for job, payload in share]
            work.answer(caller, deliveries)
        else:
            deliveries = [Delivery(*share[0])]
            await caller.note.write(engine, work, [job for job, _ in share])
            work.answer_early(caller, deliveries)
        work.after_commit.append(partial(_hand_over, engine, caller, deliveries))
        served.add(caller)
    work.pulled += given
    if fast is not None and given:
        fast.warm(work, queue, given)
    await engine.throttle.claimed(work, queue, allowance, given)
    unserved = [newcomer for newcomer in newcomers if newcomer not in served]
    if more:
        work.deferred += unserved
    else:
        _turn_away(engine, work, unserved)
    if not jobs:
        await _tell_hit(engine, work, queue, allowance)
        await forget_unused(work, queue)
    again_at = work.steady_ms if more else _earlier(allowance.again_at(work.steady_ms), reopens_at)
    work.after_commit.append(partial(_look_again, engine, queue, again_at, newcomers=bool(unserved)))


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _turn_away(engine: Engine, work: UnitOfWork, newcomers: Iterable[Claim]) -> None:
    """There is nothing for them: those who want to wait do, the others are told."""
    for newcomer in newcomers:
        if newcomer.wait_ms > 0:
            work.after_commit.append(partial(engine.room.enter, newcomer))
        else:
            work.answer(newcomer, [])


async def _next_jobs(
    work: UnitOfWork, queue: Queue, limit: int, callers: Iterable[Claim], store: Capabilities
) -> tuple[list[tuple[Job, Payload]], bool]:
    """Read as many jobs as the callers want and the queue may give, and tell whether the next batch should look for more."""
    if not store.is_shared:  # otherwise another server may have pushed what our counts do not know yet
        limit = min(limit, work.tx.counts(queue).waiting)
    wanted = 0
    bodies = False
    for caller in callers:
        if wanted >= limit:
            break
        if not caller.future.done():
            wanted += caller.count
            bodies = bodies or caller.note is None
    if min(wanted, limit) <= 0:
        return [], False
    jobs = []
    expired = False
    ready = await work.tx.job_ready(queue, min(wanted, limit), bodies=bodies)
    for known, (_, payload) in zip(work.track_all([job for job, _ in ready]), ready, strict=True):
        if known.expires_at is not None and known.expires_at <= work.now_ms:
            work.move(known, Arrow.EXPIRE)
            expired = True
        else:
            jobs.append((known, payload))
    # What a batch hands out is bounded, in jobs and in bytes, and expired jobs may have stood in front of good ones.
    size = sum(job.size for job, _ in jobs) if bodies else 0
    return jobs, expired or len(jobs) == limits.claim_batch_jobs_max or size >= limits.claim_batch_bytes_max


async def _tell_hit(engine: Engine, work: UnitOfWork, queue: Queue, allowance: Allowance) -> None:
    """Tell who listens that the rate limit holds back the next job."""
    if engine.feed.is_heard and work.tx.counts(queue).waiting and engine.throttle.tells_hit(work, queue, allowance):
        for job, _ in await work.tx.job_ready(queue, 1):
            payload = {"queue": queue.key.name, "jobId": job.custom_id or to_uuid(job.id)}
            namespace, name = queue.key
            tell = partial(
                engine.feed.publish_transient, EventKind.RATELIMIT_HIT, payload, work.now_ms, namespace=namespace, queue=name
            )
            work.after_commit.append(tell)


def lease_ms_of(queue: Queue, caller: Claim, job: Job | None = None) -> int:
    """Return the length of the lease that a caller gets: of a certain job, or of one without rules of its own."""
    stall = queue.settings.stall
    if caller.lease_ms is not None:
        lease_ms = caller.lease_ms
    else:
        lease_ms = max(stall.stall_interval, stall.grace_period) if stall.enabled else 0
    if job is not None and job.details is not None and lease_ms and stall.enabled:
        own = details_of(job).stall_timeout
        if own is not None:
            # Silence for this long loses the job, and so does a lease that was asked for and is shorter.
            own = max(own, stall.grace_period)
            lease_ms = own if caller.lease_ms is None else min(own, lease_ms)
    return lease_ms


def _lease(work: UnitOfWork, queue: Queue, caller: Claim, jobs: Sequence[Job]) -> None:
    """Hand jobs to a caller."""
    if caller.owner is None:
        plain = [job for job in jobs if job.details is None]
        if plain:
            work.lease_all(plain, Arrow.CLAIM, lease_ms_of(queue, caller))
        if len(plain) == len(jobs):
            return
        jobs = [job for job in jobs if job.details is not None]
    for job in jobs:
        lease_ms = lease_ms_of(queue, caller, job)
        if caller.owner is not None:
            details = details_of(job)
            details.owner = caller.owner
            put_details(job, details)
        work.move(job, Arrow.CLAIM, lease_ms)


def _hand_over(engine: Engine, caller: Claim, deliveries: list[Delivery]) -> None:
    """After the commit: let a caller out of the line; what it was given goes back if it has left by itself meanwhile."""
    engine.room.leave(caller)
    if caller.future.done():  # it hung up, or its time was over, while the commit was under way
        return_deliveries(engine, caller, deliveries)


def return_deliveries(engine: Engine, caller: Claim, deliveries: list[Delivery]) -> None:
    """Release jobs that were leased for a caller that is gone."""
    if caller.note is not None:
        if deliveries:
            engine.run_unheard(caller.note.taken_back())
        return
    holds = [LeaseRef(delivery.job.id, delivery.job.token) for delivery in deliveries]
    if holds:  # if they cannot be released now, their leases will run out
        engine.run_unheard(Release(caller.queue.namespace, holds))


def _look_again(engine: Engine, queue: Queue, again_at: int | None, *, newcomers: bool) -> None:
    """After the commit: book the next look at a line that is not empty yet."""
    if engine.room.waiting(queue.key):
        if again_at is not None:
            engine.room.nudge_at(queue.key, again_at)
        elif newcomers and engine.store.capabilities.is_shared and engine.may_have_waiting(queue):
            # Another server pushed between our look and now, and told us before the newcomers had lined up.
            engine.room.nudge_at(queue.key, engine.clock.steady_ms())


class PendingClaim:
    """A claim for somebody who may leave while it waits: then nothing is claimed, or it is given back.

    Raises why it cannot be asked for.
    """

    def __init__(self, engine: AnyEngine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim
        engine.run(claim)

    async def answer(self) -> Sequence[Delivery]:
        """Return what it got; nothing if it was given up. Raises why there is nothing to be had."""
        try:
            deliveries = await asyncio.shield(self._claim.future)
        except asyncio.CancelledError:
            if self._claim.gone:
                return ()
            self.give_up()  # it is whoever waits that was cancelled
            raise
        return () if self._claim.gone else deliveries

    def give_up(self) -> None:
        """Nobody wants it any more; giving up twice is fine."""
        if not self._claim.gone:
            abandon(self._engine.of(self._claim.queue), self._claim)


def abandon(engine: Engine, claim: Claim) -> None:
    """The caller is gone: step out of the line, or give back what it was just handed."""
    claim.gone = True
    engine = claim.engine or engine
    if engine.room.leave(claim):
        claim.future.cancel()
        return

    def give_back(future: asyncio.Future[list[Delivery]]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        return_deliveries(engine, claim, future.result())

    claim.future.add_done_callback(give_back)
