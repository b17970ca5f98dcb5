"""Flows that span shards. No transaction spans two shards, and nothing is lost between two.

Before a job is pushed that needs one on another shard, that shard receives ``WatchJobs``. It answers the state of the
needed job and, in the same transaction, records which shard has requested it. From then on, the transaction that ends the
needed job also stores the end for that shard (``Transaction.relay_end``). The relayer sends it there (``ApplyRemoteEnds``),
where it is applied like the end of a job of that shard, and then deletes it (``RecordDelivered``). Sending it twice changes
nothing, so an interrupted relay is repeated.

A shard may get an end before the push that requested it is stored. So an end is sent again as long as such a push may be in
progress. From time to time the auditor checks that every dependency on another shard is recorded there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.dependencies import Dependency, JobEnd, Need, Relay, RemoteJob, vanished
from penstock.core.errors import ServerError
from penstock.core.ids import shard_of, time_of
from penstock.core.job import JobFlag
from penstock.core.lifecycle import Arrow, State
from penstock.engine.command import Command, NamespaceCommand
from penstock.engine.jobs.dependencies import await_, drop_needs, needed_state
from penstock.engine.maintenance.service import PeriodicService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

    ShardsOf = Callable[[Sequence[int]], Awaitable[dict[int, int]]]


class WatchJobs(NamespaceCommand[list[RemoteJob | None]]):
    """Request the ends of jobs on behalf of a shard. Answers the state of each job; None: there is no such job.

    ``namespace``: the jobs must be in it.
    """

    __slots__ = ("jobs", "shard")

    grows = True

    def __init__(self, namespace: str, jobs: Sequence[int], shard: int) -> None:
        super().__init__(namespace)
        self.jobs = jobs
        self.shard = shard

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.jobs)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs."""
        return [(self.namespace, job_id) for job_id in self.jobs]


class Audit(Command[list[JobEnd]]):
    """Make sure that a shard gets the ends of jobs that it waits for. Answers the ends that it should have got long ago."""

    __slots__ = ("jobs", "shard")

    def __init__(self, jobs: Sequence[int], shard: int) -> None:
        self.jobs = jobs
        self.shard = shard

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.jobs)

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs, of any namespace."""
        return [(None, job_id) for job_id in self.jobs]


class DueShards(Command[set[int]]):
    """Return the shards to which ends are to be sent now."""

    __slots__ = ()


class DueRelays(Command[list[Relay]]):
    """Return some of the ends that are to be sent to a shard now."""

    __slots__ = ("shard",)

    def __init__(self, shard: int) -> None:
        self.shard = shard


class ApplyRemoteEnds(Command[None]):
    """Apply ends of jobs of another shard, each with a job that does not need the ended job any more, or 0."""

    __slots__ = ("ends",)

    def __init__(self, ends: Sequence[tuple[JobEnd, int]]) -> None:
        self.ends = ends

    def weight(self) -> int:
        """Return the number of its ends."""
        return len(self.ends)


class RecordDelivered(Command[int | None]):
    """Record that ends were sent. Answers after how many ms the next of them is to be sent again; None: none is."""

    __slots__ = ("relays",)

    def __init__(self, relays: Sequence[Relay]) -> None:
        self.relays = relays

    def weight(self) -> int:
        """Return the number of its ends."""
        return len(self.relays)


class Cancelled(NamedTuple):
    """Outcome of cancelling children."""

    idle: int  #: number of cancelled jobs
    gone: frozenset[int]  #: jobs that do not exist any more


class CancelIdle(NamespaceCommand[Cancelled]):
    """Cancel those of some jobs that no worker has. The job of another shard that needs them does not need them any more."""

    __slots__ = ("jobs", "spared")

    def __init__(self, namespace: str, jobs: Sequence[int], spared: int) -> None:
        super().__init__(namespace)
        self.jobs = jobs
        self.spared = spared

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return all its jobs, of any namespace."""
        return [(None, job_id) for job_id in self.jobs]

    def weight(self) -> int:
        """Return the number of its jobs."""
        return len(self.jobs)


class OpenNeeds(Command[list[Dependency]]):
    """Return a page of what jobs of this shard wait for, see ``Transaction.need_page``."""

    __slots__ = ("after",)

    def __init__(self, after: tuple[int, int]) -> None:
        self.after = after


async def watch_jobs(_engine: EngineContext, work: UnitOfWork, commands: Sequence[WatchJobs]) -> None:
    """Apply a batch of requests for the ends of jobs."""
    await work.prefetch([job_id for command in commands for job_id in command.jobs])
    for command in commands:
        found: list[RemoteJob | None] = []
        alive: list[int] = []
        dead: list[int] = []  # they may be retried
        for job_id in command.jobs:
            job = await work.find(command.namespace, job_id)
            found.append(None if job is None else await needed_state(work, job))
            if job is not None and job.state != State.COMPLETED:
                await_(work, job, JobFlag.AWAITS)
                (dead if job.state == State.DEAD else alive).append(job_id)
        if alive:
            await work.tx.relay_ask(alive, command.shard, alive=True)
        if dead:
            await work.tx.relay_ask(dead, command.shard, alive=False)
        work.answer(command, found)


async def audit(_engine: EngineContext, work: UnitOfWork, commands: Sequence[Audit]) -> None:
    """Apply a batch of audits."""
    for command in commands:
        await work.prefetch(command.jobs)
        known = await work.tx.relay_asked(command.jobs, command.shard)
        ends: list[JobEnd] = []
        asked: list[int] = []
        for job_id in command.jobs:
            job = await work.known(job_id)
            if known.get(job_id) is not None:  # it is being sent
                continue
            if job is None:
                ends.append(vanished(job_id))
                continue
            end = (await needed_state(work, job)).end
            if end.state is not Need.PENDING:
                ends.append(end)
            if end.state.is_open and job_id not in known:
                await_(work, job, JobFlag.AWAITS)
                asked.append(job_id)
        if asked:
            await work.tx.relay_ask(asked, command.shard, alive=False)
        work.answer(command, ends)


async def due_shards(_engine: EngineContext, work: UnitOfWork, commands: Sequence[DueShards]) -> None:
    """Apply a batch of lookups of shards."""
    shards = await work.tx.relay_shards()
    for command in commands:
        work.answer(command, shards)


async def due_relays(engine: EngineContext, work: UnitOfWork, commands: Sequence[DueRelays]) -> None:
    """Apply a batch of lookups of ends."""
    most = limits.relays_batch_shared_max if engine.fair_share.shared else limits.relays_batch_max
    for command in commands:
        work.answer(command, await work.tx.relay_due(command.shard, most))


async def apply_remote_ends(engine: EngineContext, work: UnitOfWork, commands: Sequence[ApplyRemoteEnds]) -> None:
    """Apply a batch of ends on other shards: from here on they are like any other end."""
    for command in commands:
        without: dict[int, set[int]] = {}  #: by job: those that it does not need any more
        for end, spared in command.ends:
            if spared:
                without.setdefault(spared, set()).add(end.job)
        for spared, needed in without.items():
            await drop_needs(work, spared, needed)
        for end, _ in command.ends:
            work.ends.append(end._replace(serial=engine.end_serial(work)))
        work.answer(command, None)


async def record_delivered(_engine: EngineContext, work: UnitOfWork, commands: Sequence[RecordDelivered]) -> None:
    """Apply a batch of ends that were sent."""
    for command in commands:
        again: list[tuple[Relay, int]] = []
        done: list[Relay] = []
        kept: list[Relay] = []
        hopeful = [each.end.job for each in command.relays if each.end.state is Need.FAILED]
        await work.prefetch(hopeful)
        for each in command.relays:
            last_ms = each.asked_at + limits.relay_ms
            if work.now_ms < last_ms:
                step = (
                    limits.relay_steps_ms[each.deliveries]
                    if each.deliveries < len(limits.relay_steps_ms)
                    else limits.relay_ms
                )
                again.append((each, min(work.now_ms + step, last_ms)))
            elif each.end.state is Need.FAILED and await work.known(each.end.job) is not None:
                kept.append(each)  # it may be retried, and then end again
            else:
                done.append(each)
        if again:
            await work.tx.relay_again(again)
        if kept:
            await work.tx.relay_done(kept, keep=True)
        if done:
            await work.tx.relay_done(done, keep=False)
        work.answer(command, min((at - work.now_ms for _, at in again), default=None))


async def cancel_idle(_engine: EngineContext, work: UnitOfWork, commands: Sequence[CancelIdle]) -> None:
    """Apply a batch of cancelled children whose parents are on another shard."""
    for command in commands:
        await work.prefetch(command.jobs)
        deliveries = await work.tx.relay_asked(command.jobs, shard_of(command.spared))
        idle: list[JobRecord] = []
        gone: set[int] = set()
        for job_id in command.jobs:
            job = await work.known(job_id)
            if job is None:
                if deliveries.get(job_id) != 0:  # otherwise it is not too late for its result
                    gone.add(job_id)
            elif job.state in (State.WAITING, State.DELAYED):
                idle.append(job)
        unrecorded = [job.id for job in idle if job.id not in deliveries]
        if unrecorded:
            await work.tx.relay_ask(unrecorded, shard_of(command.spared), alive=True)
        for job in idle:
            await_(work, job, JobFlag.AWAITS)
            work.spared[job.id] = command.spared
            work.move(job, Arrow.CANCEL, note=str(Arrow.CANCEL))
        work.answer(command, Cancelled(len(idle), frozenset(gone)))


async def open_needs(_engine: EngineContext, work: UnitOfWork, commands: Sequence[OpenNeeds]) -> None:
    """Apply a batch of lookups of dependencies."""
    for command in commands:
        work.answer(command, await work.tx.need_page(command.after, limits.slice_jobs_max))


def _is_up(engine: EngineContext) -> bool:
    """Return whether a shard accepts writes that need no more space on disk."""
    try:
        engine.store.check_writable(grows=False)
    except ServerError:
        return False
    return True


class Relayer(PeriodicService):
    """Sends ends to the shards that wait for them: at once after the commit, and again until they have certainly arrived."""

    every_ms = 1_000

    def __init__(self, engine: EngineContext, others: Sequence[EngineContext]) -> None:
        super().__init__(engine)
        self._others = others
        self._next_ms: int | None = None

    async def round(self) -> None:
        """Send all ends that are due now, for a caller that waits for it. Ends that cannot be sent now are sent later."""
        with contextlib.suppress(ServerError):
            await self._send_to_all()

    async def run_once(self) -> None:
        """Send the due ends to every other shard that can be reached."""
        while (self._woken or self._engine.leads) and _is_up(self._engine):
            self._woken = False
            self._next_ms = await self._send_to_all()
            if not self._woken:
                break

    async def _send_to_all(self) -> int | None:
        """Send to all shards; return after how many ms something is to be sent again."""
        due = await self._engine.run(DueShards())
        waits = await asyncio.gather(*(self._send(other) for other in self._others if other.store.shard in due))
        return min((each for each in waits if each is not None), default=None)

    async def _send(self, other: EngineContext) -> int | None:
        """Send to one shard; return after how many ms something is to be sent again."""
        wait_ms: int | None = None
        while self.goes_on() and _is_up(other):
            due = await self._engine.run(DueRelays(other.store.shard))
            if not due:
                break
            try:
                await other.run(ApplyRemoteEnds([(each.end, each.spared) for each in due]))
            except ServerError:  # it has failed: it is tried again in the next round
                return self.every_ms
            again_ms = await self._engine.run(RecordDelivered(due))
            wait_ms = again_ms if wait_ms is None else min(wait_ms, again_ms or wait_ms)
        return wait_ms

    def _set_alarm(self) -> None:
        if self._next_ms is not None and self._next_ms < self.every_ms:
            clock = self._engine.clock
            self._alarm = clock.call_at(clock.steady_ms() + self._next_ms, self.wake)
        else:
            super()._set_alarm()


class Auditor(PeriodicService):
    """Makes sure that dependencies of a shard on other shards are recorded there. Ends that arrive in time need no audit."""

    every_ms = limits.MINUTE_MS

    def __init__(self, engine: EngineContext, engines: Sequence[EngineContext], shards_of: ShardsOf) -> None:
        super().__init__(engine)
        self._engines = engines
        self._shards_of = shards_of
        self._after = (0, 0)

    async def run_once(self) -> None:
        """Check a bounded number of open dependencies, and continue there next time."""
        engine = self._engine
        if not engine.leads:
            return
        for _ in range(limits.audit_pages_max):
            page = await engine.run(OpenNeeds(self._after)) if self.goes_on() else []
            young = engine.clock.now_ms() - limits.relay_ms
            remote: dict[int, list[int]] = {}
            old = [each.needs for each in page if time_of(each.job) < young and shard_of(each.needs) != engine.store.shard]
            for job_id, shard in (await self._shards_of(list(dict.fromkeys(old)))).items() if old else ():
                if shard != engine.store.shard:
                    remote.setdefault(shard, []).append(job_id)
            for shard, jobs in remote.items():
                if shard < len(self._engines) and _is_up(self._engines[shard]):
                    ends = await self._engines[shard].run(Audit(jobs, engine.store.shard))
                    if ends:
                        await engine.run(ApplyRemoteEnds([(end, 0) for end in ends]))
            if len(page) < limits.slice_jobs_max:
                self._after = (0, 0)
                return
            self._after = (page[-1].needs, page[-1].job)
