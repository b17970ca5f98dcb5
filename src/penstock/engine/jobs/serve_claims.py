"""Serves claims: each claim joins the line of its queue, and the jobs of the queue go to the first claims in line.

A claim that gets no job and does not wait is answered without one; a claim that waits stays in line. It costs one entry in a
dictionary and an alarm, and is checked again only when its queue has a new job to claim.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.events import EventKind
from penstock.core.ids import to_uuid
from penstock.core.job import Delivery, JobRecord, Payload, details_of, put_details
from penstock.core.lifecycle import Arrow
from penstock.engine.jobs.claim import lease_ms_of
from penstock.engine.jobs.claim_waiters import return_deliveries
from penstock.engine.queues.group_limits import forget_unused, reopen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.jobs.claim import Claim
    from penstock.engine.jobs.claim_waiters import RecheckQueue
    from penstock.engine.jobs.queue_limits import Allowance
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import Capabilities


async def claim(engine: EngineContext, work: UnitOfWork, commands: Sequence[Claim]) -> None:
    """Serve the lines of all queues that have new claims, or that have both waiting claims and new jobs."""
    asking: dict[QueueKey, list[Claim]] = {}
    for command in commands:
        if not command.future.done():
            asking.setdefault(command.queue, []).append(command)
    if engine.claim_waiters.size and work.ready:
        for number in work.ready:
            key = engine.store.queue_by_number(number).key
            if engine.claim_waiters.waiting(key):
                asking.setdefault(key, [])
    if asking:
        await work.flush()  # so that counts and queries include the rest of the batch
    for key, newcomers in asking.items():
        await _serve(engine, work, key, newcomers)
    if commands:
        work.timings.append((engine.stats.pull_time, len(commands)))


async def recheck_queue(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecheckQueue]) -> None:
    """Serve the lines of some queues again, in this batch."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None:
            work.ready.add(queue.number)
        work.answer(command, None)


async def _serve(engine: EngineContext, work: UnitOfWork, key: QueueKey, newcomers: list[Claim]) -> None:
    """Serve the line of one queue: first the waiting claims, then the new ones."""
    waiters = engine.claim_waiters
    queue = work.tx.queue_find(key)
    if queue is None:
        _turn_away(engine, work, newcomers)
        return
    ready_cache = engine.ready_cache
    if ready_cache is not None and ready_cache.serves(work, queue):
        ready_cache.serve(work, queue, newcomers)
        return
    allowance = await engine.queue_limits.allowance(work, queue)
    reopens_at = await reopen(work, queue) if queue.settings.limits_groups else None
    jobs, more = await _next_jobs(
        work, queue, allowance.jobs, chain(waiters.line(key), newcomers), engine.store.capabilities
    )
    served, given = await _deal(engine, work, queue, chain(waiters.line(key), newcomers), jobs)
    work.pulled += given
    if ready_cache is not None and given:
        # A list has no large jobs, so they do not make a queue hot.
        listable = sum(job.size <= limits.fast_job_bytes_max for job, _ in jobs[:given])
        ready_cache.count_claimed(work, queue, listable)
    await engine.queue_limits.claimed(work, queue, allowance, given)
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
    engine: EngineContext, work: UnitOfWork, queue: Queue, claims: Iterable[Claim], jobs: Sequence[tuple[JobRecord, Payload]]
) -> tuple[set[Claim], int]:
    """Lease jobs to the claims of a queue, in order. Return the claims that got some, and the number of jobs."""
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
            await caller.note.write(engine.store.shard, work, [job for job, _ in share])
            work.answer_early(caller, deliveries)
        work.after_commit.append(partial(_hand_over, engine, caller, deliveries))
        served.add(caller)
    return served, given


def _earlier(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def _turn_away(engine: EngineContext, work: UnitOfWork, newcomers: Iterable[Claim]) -> None:
    """Handle claims for which there is no job: those that may wait stay in line, the others are answered without a job."""
    for newcomer in newcomers:
        if newcomer.state.wait_ms > 0:
            work.after_commit.append(partial(engine.claim_waiters.enter, newcomer))
        else:
            work.answer(newcomer, [])


async def _next_jobs(
    work: UnitOfWork, queue: Queue, limit: int, callers: Iterable[Claim], store: Capabilities
) -> tuple[list[tuple[JobRecord, Payload]], bool]:
    """Read the jobs that the claims request and the limits allow. Return also whether the next batch should read more."""
    if not store.is_shared:  # otherwise another server may have pushed jobs that our counts do not include yet
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
    # One batch leases a bounded number of jobs and bytes, and there may have been expired jobs in front of good ones.
    size = sum(job.size for job, _ in jobs) if bodies else 0
    return jobs, expired or len(jobs) == limits.claim_batch_jobs_max or size >= limits.claim_batch_bytes_max


async def _publish_hit(engine: EngineContext, work: UnitOfWork, queue: Queue, allowance: Allowance) -> None:
    """Publish an event, if there are subscribers, that the rate limit delays the next job."""
    if (
        engine.feed.has_listeners
        and work.tx.counts(queue).waiting
        and engine.queue_limits.is_hit_due(work, queue, allowance)
    ):
        engine.queue_limits.note_hit(work, queue)
        for job, _ in await work.tx.job_ready(queue, 1):
            payload = {"queue": queue.key.name, "jobId": job.custom_id or to_uuid(job.id)}
            namespace, name = queue.key
            publish = partial(
                engine.feed.publish_transient, EventKind.RATELIMIT_HIT, payload, work.now_ms, namespace=namespace, queue=name
            )
            work.after_commit.append(publish)


def _lease(work: UnitOfWork, queue: Queue, caller: Claim, jobs: Sequence[JobRecord]) -> None:
    """Lease jobs to a claim."""
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


def _hand_over(engine: EngineContext, caller: Claim, deliveries: list[Delivery]) -> None:
    """Remove a claim from the line, after the commit. If its caller has left meanwhile, its jobs are released."""
    engine.claim_waiters.leave(caller)
    if caller.future.done():  # the caller left, or its wait ended, during the commit
        return_deliveries(engine, caller, deliveries)


def _look_again(engine: EngineContext, queue: Queue, again_at: int | None, *, newcomers: bool) -> None:
    """Schedule the next time at which a line that is not empty is served, after the commit."""
    if engine.claim_waiters.waiting(queue.key):
        if again_at is not None:
            engine.claim_waiters.nudge_at(queue.key, again_at)
        elif newcomers and engine.store.capabilities.is_shared and engine.may_have_waiting(queue):
            # Another server pushed after our read, and its notification came before the new claims were in line.
            engine.claim_waiters.nudge_at(queue.key, engine.clock.steady_ms())
