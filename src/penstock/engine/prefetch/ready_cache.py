"""The fast path of one engine: which queues are hot, and what serves their claims."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from penstock.core import limits
from penstock.core.breaker import Breaker
from penstock.core.errors import FastPathFailed, ServerError
from penstock.core.ids import random_name
from penstock.core.pool_shares import ALL
from penstock.engine.jobs.claim import Claim, lease_ms_of
from penstock.engine.prefetch.claim_queue import ClaimQueue
from penstock.engine.prefetch.commands import Abandon, ReadGeneration, TakeBack, lists_of, may_be_hot
from penstock.engine.prefetch.lease_recorder import LeaseRecorder
from penstock.engine.prefetch.recovery import Recovery
from penstock.store.redis.ready_lists import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.command import Command, Submit
    from penstock.engine.context import EngineContext
    from penstock.engine.prefetch.context import HotQueue
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.redis.ready_lists import RedisReadyLists

log = structlog.get_logger("penstock.fast")


class ReadyCache:
    """The ready lists of one engine.

    ``hot_jobs``: a queue is hot if so many jobs were claimed within a second, and still wait.
    """

    def __init__(self, engine: EngineContext, lists: RedisReadyLists, *, hot_jobs: int) -> None:
        self._hot_jobs = hot_jobs
        self.engine = engine
        self.lists = lists
        self.clock = engine.clock
        self.unconfirmed_leases = engine.unconfirmed_leases
        self.generation = 0
        self.lease_recorder = LeaseRecorder(self)
        self.jobs_handed_out = 0  #: jobs handed out from lists since the start
        self._lines: dict[QueueKey, ClaimQueue] = {}
        self.lost: Collection[int] = ()  #: queues whose list was lost, as of this server's latest transaction
        self._recovery = Recovery(self)
        self._claim_counts: dict[QueueKey, tuple[int, int]] = {}  #: start of the count, and number of jobs claimed since
        self._giving_up: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Longer than the grace period, so that jobs that were set aside can return, however often lists fail.
        self._breaker = Breaker(engine.clock, rest_ms=limits.fast_rest_ms, rest_ms_max=limits.fast_rest_ms_max)

    # Claims.

    def stage(self, following: Submit) -> Submit:
        """Return a function that serves claims at hot queues from lists, and passes all other commands to ``following``."""

        def serve_or_pass(command: Command[Any]) -> asyncio.Future[Any]:
            if self._lines and type(command) is Claim:
                line = self._lines.get(command.queue)
                lease_ms = None if line is None else self._listed_lease(command)
                if line is not None and lease_ms is not None:
                    command.future = asyncio.get_running_loop().create_future()
                    line.join(command, lease_ms)
                    return command.future
            return following(command)

        return serve_or_pass

    def _listed_lease(self, claim: Claim) -> int | None:
        """Return the length of the lease (ms) that a claim gets from a ready list; None if only the store may serve it."""
        if claim.state.skips_ready_list:
            return None
        queue = self.engine.store.queue_find(claim.queue)
        if queue is None:
            return None
        lease_ms = lease_ms_of(queue, claim.lease_ms)
        return lease_ms if 0 < lease_ms <= limits.fast_lease_ms_max else None

    def lease_of(self, key: QueueKey, asked_ms: int, job: JobRecord) -> int:
        """Return the length of the lease (ms) of a job for a claim. ``asked_ms``: the length that the claim requested."""
        queue = self.engine.store.queue_find(key)
        return asked_ms if queue is None else lease_ms_of(queue, asked_ms, job)

    @staticmethod
    def serves(work: UnitOfWork, queue: Queue) -> bool:
        """Return whether a queue has a ready list, or has lost it. Then ``serve`` takes its claims.

        The store serves no claim as long as a job that was on a list comes before the others.
        """
        lists = lists_of(work)
        return queue.number in lists.hot or queue.number in lists.lost

    def serve(self, work: UnitOfWork, queue: Queue, newcomers: Sequence[Claim]) -> None:
        """Take over the claims of such a queue when the work is committed."""
        take_over = self._recovery.hold if queue.number in lists_of(work).lost else self._take_over
        work.after_commit.append(partial(take_over, queue, list(newcomers)))

    def _take_over(self, queue: Queue, newcomers: list[Claim]) -> None:
        line = self._line(queue)
        unsuited: list[Claim] = []
        for claim in [*self.engine.claim_waiters.line(queue.key), *newcomers]:
            self.engine.claim_waiters.leave(claim)
            if claim.future.done():
                continue
            lease_ms = self._listed_lease(claim)
            if lease_ms is None:
                unsuited.append(claim)
            else:
                line.join(claim, lease_ms)
        if unsuited:
            self.start(self._serve_without_list(queue.key, unsuited), "penstock-fast-clear")

    async def _serve_without_list(self, key: QueueKey, claims: list[Claim]) -> None:
        """Take the list of a queue back, because its jobs come before the others, and let the database serve claims."""

        def serve() -> None:
            for claim in claims:
                if not claim.future.done():
                    self.put_back(claim)
            claims.clear()

        await self.clear(key, then=serve)
        serve()

    def leave_list(self, line: HotQueue, claims: list[Claim]) -> None:
        """Let the database serve claims of a queue, without the list."""
        self.forget(line)
        self.start(self._serve_without_list(line.key, claims), "penstock-fast-clear")

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a task in the background; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, ServerError):
            log.error("a task of the fast path failed", task=task.get_name(), exc_info=error)

    def put_back(self, claim: Claim) -> None:
        """Let the database serve a claim."""
        claim.state.skip_ready_list()
        self.engine.put_back(claim)

    def count_claimed(self, work: UnitOfWork, queue: Queue, claimed: int) -> None:
        """Count jobs that were claimed from the database, and that could be on a list.

        A queue from which many are claimed, and that has more, gets a list.
        """
        lists = lists_of(work)
        if queue.number not in lists.hot:
            lists.claims_unlisted(queue.number)
        if claimed > limits.fast_batch_jobs_max:
            self._claim_counts.pop(queue.key, None)
            return
        steady = work.steady_ms
        since, count = self._claim_counts.get(queue.key, (steady, 0))
        count += claimed
        if steady - since > limits.fast_rate_ms:
            since, count = steady, claimed
        self._claim_counts[queue.key] = since, count
        if len(self._claim_counts) > limits.fast_queues_max:
            del self._claim_counts[next(iter(self._claim_counts))]
        if (
            count >= self._hot_jobs
            and work.tx.counts(queue).waiting >= self._hot_jobs
            and may_be_hot(queue.settings)
            and not self.is_paused
            and not self.lists.link.is_full
        ):
            work.after_commit.append(partial(self._line, queue))

    async def begin_lists(self, generation: int) -> bool:
        """Prepare Redis for the first list of a generation; False if that fails."""
        try:
            await self.lists.begin(generation)
        except FastPathFailed:
            self.failed()
            return False
        return True

    def _line(self, queue: Queue) -> ClaimQueue:
        line = self._lines.get(queue.key)
        if line is None:
            line = self._lines[queue.key] = ClaimQueue(self, queue)
        return line

    def forget(self, line: HotQueue) -> None:
        """Record that a queue is not hot any more."""
        if self._lines.get(line.key) is line:
            del self._lines[line.key]
            self._claim_counts.pop(line.key, None)

    def worked(self) -> None:
        """Record that a list was filled, and that jobs of an earlier one were handed out since: Redis works."""
        self._breaker.worked()

    def room_for_bytes(self, namespace: str) -> int:
        """Return how many bytes of jobs a namespace may add to its lists: its share of ``limits.fast_bytes_max``."""
        by_namespace = self._bytes_by_namespace()
        percent, free = self.engine.pool_shares.percent, limits.fast_bytes_max - sum(by_namespace.values())
        if percent == ALL:
            return max(0, free)
        held = by_namespace.get(namespace, 0)
        return max(0, min(free, (free + held) * percent // ALL - held))

    def out_of_memory(self) -> None:
        """Give up the largest list of the namespace that has most on lists, because Redis is out of memory.

        Only one list, so that others go on; while Redis is full, lists are not filled, so the others become empty.
        """
        by_namespace = self._bytes_by_namespace()
        if by_namespace:
            largest = max(by_namespace, key=by_namespace.__getitem__)
            lines = [line for line in self._lines.values() if line.key.namespace == largest]
            self.leave_list(max(lines, key=lambda line: line.prefetcher.bytes), [])

    def _bytes_by_namespace(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for line in self._lines.values():
            sizes[line.key.namespace] = sizes.get(line.key.namespace, 0) + line.prefetcher.bytes
        return sizes

    def count(self, given: int) -> None:
        """Count jobs that were handed out."""
        self.jobs_handed_out += given
        self.engine.stats.pulled += given

    @staticmethod
    def new_holder() -> str:
        """Return a name for the holder of a lock."""
        return f"{random_name():016x}"

    def depth(self, key: QueueKey) -> int:
        """Return the number of jobs on the ready list of a queue, as far as this server knows."""
        line = self._lines.get(key)
        return 0 if line is None else line.prefetcher.depth

    # Order.

    async def offer(self, work: UnitOfWork) -> None:
        """Make sure that ready lists hand out no job that comes after jobs which a commit made ready in hot queues.

        Called before the commit is answered. The ready list of a queue whose settings were changed is taken back.
        """
        for key in work.reconfigured:  # from the answer on, the queue may be paused, or limited
            await self.clear(key, soon=True)  # waiting would block the lane that runs it
        best: dict[int, str] = {}
        lists = lists_of(work)
        hot = set(lists.hot_after_commit)
        for jobs in work.readied:
            for job in jobs:
                if job.queue in hot:
                    place = place_of(job)
                    if place < best.get(job.queue, "g"):
                        best[job.queue] = place
        try:
            for queue, place in best.items():
                await self.lists.offer(lists.lists_generation, queue, place)
        except FastPathFailed:
            self.failed()

    # Taking back.

    async def pull_out(self, generation: int, queue: int, jobs: Sequence[JobRecord]) -> set[int]:
        """Take some jobs off a ready list; return the ids of those that were on it.

        If Redis fails, a worker may have them.
        """
        try:
            return await self.lists.remove(generation, queue, jobs)
        except FastPathFailed:
            self.failed()
            return set()

    async def clear(self, key: QueueKey, *, soon: bool = False, then: Callable[[], None] | None = None) -> None:
        """Take all jobs back from the ready list of a queue, filled by any server, as far as Redis answers.

        ``soon``, ``then``: see ``take_back``.
        """
        queue = self.engine.store.queue_find(key)
        if queue is not None:
            try:
                await self.take_back(queue.number, self.engine.hot.get(queue.number), soon=soon, then=then)
            except FastPathFailed:
                self.failed()
            except ServerError as error:  # the database has failed: the leases of the jobs expire
                log.warning("the jobs of a ready list could not be taken back", queue=key, error=str(error))

    async def take_back(
        self,
        number: int,
        epoch: int | None,
        filled_before_ms: int | None = None,
        *,
        soon: bool = False,
        then: Callable[[], None] | None = None,
    ) -> bool:
        """Take all jobs from a ready list, unless it was filled since; return whether it was done.

        No job of it is handed out any more when this returns. ``soon``: do not wait until the jobs are back in the queue.
        ``then``: commands that it submits run in the same transaction, where no server can have made the list again.
        """
        holder = self.new_holder()
        before = self.clock.steady_ms() + limits.HOUR_MS if filled_before_ms is None else filled_before_ms
        generation = self.generation
        jobs = await self.lists.drain(generation, number, holder, before, known=epoch is not None)
        if jobs is None:
            return False
        taken = self.engine.run(TakeBack([(job.id, job.token) for job, _ in jobs], number, epoch))
        if then is not None:
            then()
        if soon:
            taken.add_done_callback(lambda _: self._unlock_soon(generation, number, holder))
        else:
            await taken
            await self.lists.unlock(generation, number, holder)
        return True

    def _unlock_soon(self, generation: int, number: int, holder: str) -> None:
        # A lock that is not released expires.
        self.start(self.lists.unlock(generation, number, holder), "penstock-fast-unlock")

    async def take_back_idle(self) -> None:
        """Take back lists that are not used any more."""
        idle = self.clock.steady_ms() - limits.fast_idle_ms
        hot = dict(self.engine.hot)
        ours = {line.number: line for line in self._lines.values()}
        for number, epoch in hot.items():
            if number in ours or self.engine.leads:
                taken = await self.take_back(number, epoch, idle)
                if taken and number in ours:
                    self.forget(ours[number])

    # Failures.

    @property
    def is_reachable(self) -> bool:
        """Whether Redis answered last."""
        return not self.lists.link.breaker.is_open

    @property
    def is_paused(self) -> bool:
        """Return whether no ready lists are used for now, because they failed."""
        return self._breaker.is_open or self.lists.link.breaker.is_open

    def failed(self) -> None:
        """Give up the lists, because Redis fails or has lost data: its contents are uncertain."""
        if not self._breaker.is_open:
            self._breaker.failed()
        for line in list(self._lines.values()):
            self.forget(line)
        if self._giving_up is None:
            self._giving_up = asyncio.get_running_loop().create_task(self._give_up(), name="penstock-fast-give-up")

    async def _give_up(self) -> None:
        try:
            if await self.engine.run(Abandon(self.generation)):
                log.warning("the ready lists are given up; their jobs return to the queues", generation=self.generation)
        except ServerError:
            pass  # the leases of the jobs that were set aside expire
        finally:
            self._giving_up = None

    def committed(self, work: UnitOfWork) -> None:
        """Handle a commit: it shows whether a server has given up the lists."""
        lists = lists_of(work)
        if lists.generation >= self.generation:  # of two transactions in progress, either may end first
            self.engine.hot = lists.hot
            self.lost = lists.lost
        if lists.generation > self.generation:
            self.generation = lists.generation
            for line in list(self._lines.values()):
                self.forget(line)
            self.lease_recorder.hurry(self.generation)

    def check_generation(self) -> None:
        """Check whether lists were lost, because another server may have given them up."""
        self.engine.run_in_background(ReadGeneration())

    async def close(self) -> None:
        """Record the leases of jobs that were handed out.

        The jobs on lists are for the other servers, or their leases expire.
        """
        await self.lease_recorder.stop()
        for line in list(self._lines.values()):
            await line.close()
        self._recovery.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with contextlib.suppress(ServerError):
            await self.lease_recorder.note(limits.HOUR_MS)
        if self._giving_up is not None:
            await asyncio.gather(self._giving_up, return_exceptions=True)
