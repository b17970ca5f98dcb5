"""Claiming jobs, and waiting in line for them.

Everybody who asks for jobs lines up at their queue; then the line is served from the front with what the queue has. Whoever is
not served and does not want to wait is answered with nothing; whoever waits stays in line. A waiting caller costs a place in a
dictionary and a booked alarm, nothing else: it is looked at again only when its queue got something to claim.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core import limits
from penstock.core.events import EventKind
from penstock.core.ids import to_uuid
from penstock.core.job import Delivery, Job, Payload, details_of, put_details
from penstock.core.lifecycle import Arrow
from penstock.engine.command import Command, IfUnknown, QueueCommand
from penstock.engine.jobs.settle import LeaseRef, Release
from penstock.engine.queues.group_limits import forget_unused, reopen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


class ClaimState:
    """The state of a claim between its submission and its answer. Only these methods change it."""

    __slots__ = ("engine", "is_abandoned", "skips_ready_list", "wait_ms", "waits_until")

    def __init__(self, wait_ms: int, *, skips_ready_list: bool) -> None:
        self.wait_ms = wait_ms  #: how long it waits at this shard, once it begins to wait there
        self.waits_until: int | None = None  #: end of that wait (steady ms of the engine's clock); None: it has not begun
        self.skips_ready_list = skips_ready_list  #: the store serves it, even if its queue has a ready list
        self.engine: Engine | None = None  #: the engine of the shard that its queue was moved to; None: it was not moved
        self.is_abandoned = False  #: the caller does not wait for the answer any more

    def begin_wait(self, steady_ms: int) -> int:
        """Begin to wait, unless that was done before. Return the end of the wait (steady ms)."""
        if self.waits_until is None:
            self.waits_until = steady_ms + self.wait_ms
        return self.waits_until

    def suspend_wait(self, steady_ms: int) -> None:
        """Keep only the time that is left: the queue moves to another shard, whose clock differs."""
        self.wait_ms = max(0, (self.waits_until or steady_ms) - steady_ms)
        self.waits_until = None

    def resume_wait(self, left_ms: int) -> None:
        """Set the time that is left after the queue has moved."""
        self.wait_ms = left_ms

    def move_to(self, engine: Engine) -> None:
        """Record that the engine of another shard has the claim now."""
        self.engine = engine

    def skip_ready_list(self) -> None:
        """Have the store serve the claim from now on."""
        self.skips_ready_list = True

    def abandon(self) -> None:
        """Record that the caller does not wait for the answer any more."""
        self.is_abandoned = True


class Claim(QueueCommand[list[Delivery]]):
    """Request up to ``count`` jobs, waiting up to ``wait_ms`` for the first. These arguments do not change; ``state`` does.

    ``lease_ms``: length of the lease without a heartbeat (None: the queue's stall interval). ``note``: written by the
    transaction of the claim; the answer then has the first job only, without its payload, and does not wait for the fsync.
    ``skips_ready_list``: the store serves the claim, even if the queue has a ready list.
    """

    __slots__ = ("count", "lease_ms", "note", "owner", "state", "wait_ms")

    if_unknown = IfUnknown.PULL

    def __init__(
        self,
        queue: QueueKey,
        count: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        owner: str | None = None,
        note: ClaimNote | None = None,
        skips_ready_list: bool = False,
    ) -> None:
        self.queue = queue
        self.count: Final = count
        self.wait_ms: Final = wait_ms
        self.lease_ms: Final = lease_ms
        self.owner: Final = owner
        self.note: Final = note
        self.state: Final = ClaimState(wait_ms, skips_ready_list=skips_ready_list)

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
        _turn_away(engine, work, newcomers)
        return
    fast = engine.fast
    if fast is not None and fast.serves(work, queue):
        fast.serve(work, queue, newcomers)
        return
    allowance = await engine.throttle.allowance(work, queue)
    reopens_at = await reopen(work, queue) if queue.settings.limits_groups else None
    jobs, more = await _next_jobs(work, queue, allowance.jobs, chain(room.line(key), newcomers), engine.store.capabilities)
    served, given = await _deal(engine, work, queue, chain(room.line(key), newcomers), jobs)
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
        await _publish_hit(engine, work, queue, allowance)
        await forget_unused(work, queue)
    again_at = work.steady_ms if more else _earlier(allowance.again_at(work.steady_ms), reopens_at)
    work.after_commit.append(partial(_look_again, engine, queue, again_at, newcomers=bool(unserved)))


async def _deal(
    engine: Engine, work: UnitOfWork, queue: Queue, claims: Iterable[Claim], jobs: Sequence[tuple[Job, Payload]]
) -> tuple[set[Claim], int]:
    """Lease jobs to the claims of a queue, in order. Return the claims that got some, and how many jobs they got."""
    served: set[Claim] = set()
    line = iter(claims)
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
    return served, given


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _turn_away(engine: Engine, work: UnitOfWork, newcomers: Iterable[Claim]) -> None:
    """There is nothing for them: those who want to wait do, the others are told."""
    for newcomer in newcomers:
        if newcomer.state.wait_ms > 0:
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


async def _publish_hit(engine: Engine, work: UnitOfWork, queue: Queue, allowance: Allowance) -> None:
    """Publish an event, if there are subscribers, that the rate limit holds back the next job."""
    if engine.feed.is_heard and work.tx.counts(queue).waiting and engine.throttle.is_hit_due(work, queue, allowance):
        engine.throttle.note_hit(work, queue)
        for job, _ in await work.tx.job_ready(queue, 1):
            payload = {"queue": queue.key.name, "jobId": job.custom_id or to_uuid(job.id)}
            namespace, name = queue.key
            publish = partial(
                engine.feed.publish_transient, EventKind.RATELIMIT_HIT, payload, work.now_ms, namespace=namespace, queue=name
            )
            work.after_commit.append(publish)


def lease_ms_of(queue: Queue, asked_ms: int | None, job: Job | None = None) -> int:
    """Return the length of a lease (ms) for a claim that asked for ``asked_ms``; None: as the queue's settings say.

    ``job``: None stands for a job without a stall timeout of its own.
    """
    stall = queue.settings.stall
    default_ms = max(stall.stall_interval, stall.grace_period) if stall.enabled else 0
    lease_ms = default_ms if asked_ms is None else asked_ms
    if job is not None and job.details is not None and lease_ms and stall.enabled:
        own = details_of(job).stall_timeout
        if own is not None:
            # Silence for this long loses the job, and so does a lease that was asked for and is shorter.
            own = max(own, stall.grace_period)
            lease_ms = own if asked_ms is None else min(own, lease_ms)
    return lease_ms


def _lease(work: UnitOfWork, queue: Queue, caller: Claim, jobs: Sequence[Job]) -> None:
    """Hand jobs to a caller."""
    if caller.owner is None:
        plain = [job for job in jobs if job.details is None]
        if plain:
            work.lease_all(plain, Arrow.CLAIM, lease_ms_of(queue, caller.lease_ms))
        if len(plain) == len(jobs):
            return
        jobs = [job for job in jobs if job.details is not None]
    for job in jobs:
        lease_ms = lease_ms_of(queue, caller.lease_ms, job)
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
