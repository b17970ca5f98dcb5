"""Claiming jobs, and waiting in line for them.

Everybody who asks for jobs lines up at their queue; then the line is served from the front with what the queue has. Whoever is
not served and does not want to wait is answered with nothing; whoever waits stays in line. A waiting caller costs a place in a
dictionary and a booked alarm, nothing else: it is looked at again only when its queue got something to claim.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from penstock.core import limits
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
    from penstock.engine.jobs.claim_waiters import RecheckQueue
    from penstock.engine.jobs.queue_limits import Allowance
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
