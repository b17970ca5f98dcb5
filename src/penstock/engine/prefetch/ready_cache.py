"""The fast path of one engine: which queues are hot, and who serves them."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from penstock.core import limits
from penstock.core.breaker import Breaker
from penstock.core.errors import FastPathFailed, PenstockError
from penstock.core.ids import random_name
from penstock.engine.jobs.claim import Claim, lease_ms_of
from penstock.engine.prefetch.claim_queue import ClaimQueue
from penstock.engine.prefetch.commands import Abandon, Look, TakeBack, may_be_hot
from penstock.engine.prefetch.lease_recorder import LeaseRecorder
from penstock.engine.prefetch.recovery import Recovery
from penstock.store.redis.ready_lists import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from penstock.core.job import Job
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.command import Command, Submit
    from penstock.engine.context import EngineContext
    from penstock.engine.prefetch.context import HotQueue
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.redis.ready_lists import ReadyLists

log = structlog.get_logger("penstock.fast")


class ReadyCache:
    """The ready lists of one engine. ``hot_jobs``: claimed within a second, and still waiting, make a queue hot."""

    def __init__(self, engine: EngineContext, lists: ReadyLists, *, hot_jobs: int) -> None:
        self._hot_jobs = hot_jobs
        self.engine = engine
        self.lists = lists
        self.clock = engine.clock
        self.handed = engine.handed
        self.generation = 0
        self.daemon = LeaseRecorder(self)
        self.lent = 0  #: jobs handed out from lists since the start
        self._lines: dict[QueueKey, ClaimQueue] = {}
        self.lost: Collection[int] = ()  #: queues whose list was lost, as of our latest transaction
        self._recovery = Recovery(self)
        self._heat: dict[QueueKey, tuple[int, int]] = {}  #: when counting began, and how many were claimed since
        self._giving_up: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        #: Longer than the grace, so that what was set aside has time to come back, however often lists fail.
        self._rest = Breaker(engine.clock, rest_ms=limits.fast_rest_ms, rest_ms_max=limits.fast_rest_ms_max)

    # Claims.

    def stage(self, following: Submit) -> Submit:
        """Return what serves claims at hot queues from lists, and gives all other commands to ``following``."""

        def fast(command: Command[Any]) -> asyncio.Future[Any]:
            if self._lines and type(command) is Claim:
                line = self._lines.get(command.queue)
                lease_ms = None if line is None else self._listed_lease(command)
                if line is not None and lease_ms is not None:
                    command.future = asyncio.get_running_loop().create_future()
                    line.join(command, lease_ms)
                    return command.future
            return following(command)

        return fast

    def _listed_lease(self, claim: Claim) -> int | None:
        """Return the length of the lease (ms) that a claim gets from a ready list; None if only the store may serve it."""
        if claim.state.skips_ready_list:
            return None
        queue = self.engine.store.queue_find(claim.queue)
        if queue is None:
            return None
        lease_ms = lease_ms_of(queue, claim.lease_ms)
        return lease_ms if 0 < lease_ms <= limits.fast_lease_ms_max else None

    def lease_of(self, key: QueueKey, asked_ms: int, job: Job) -> int:
        """Return the length of the lease (ms) that a claim gets a job with. ``asked_ms``: that of the claim."""
        queue = self.engine.store.queue_find(key)
        return asked_ms if queue is None else lease_ms_of(queue, asked_ms, job)

    @staticmethod
    def serves(work: UnitOfWork, queue: Queue) -> bool:
        """Tell whether a queue has a ready list, or has lost it. Then its claims are for ``serve``.

        The store serves no claim as long as a job that was on a list comes before the others.
        """
        return queue.number in work.tx.hot or queue.number in work.tx.lost

    def serve(self, work: UnitOfWork, queue: Queue, newcomers: Sequence[Claim]) -> None:
        """Take over the claims of such a queue, once the work is committed."""
        take_over = self._recovery.hold if queue.number in work.tx.lost else self._take_over
        work.after_commit.append(partial(take_over, queue, list(newcomers)))

    def _take_over(self, queue: Queue, newcomers: list[Claim]) -> None:
        line = self._line(queue)
        unsuited: list[Claim] = []
        for claim in [*self.engine.room.line(queue.key), *newcomers]:
            self.engine.room.leave(claim)
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
        """Take the list of a queue back, and have the database serve callers: what is on the list stands before the rest."""

        def serve() -> None:
            for claim in claims:
                if not claim.future.done():
                    self.put_back(claim)
            claims.clear()

        await self.clear(key, then=serve)
        serve()

    def leave_list(self, line: HotQueue, claims: list[Claim]) -> None:
        """Have the database serve callers of a line, without the list."""
        self.forget(line)
        self.start(self._serve_without_list(line.key, claims), "penstock-fast-clear")

    def start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do something in the background; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, PenstockError):
            log.error("a task of the fast path failed", task=task.get_name(), exc_info=error)

    def put_back(self, claim: Claim) -> None:
        """Have the database serve a caller after all."""
        claim.state.skip_ready_list()
        self.engine.put_back(claim)

    def warm(self, work: UnitOfWork, queue: Queue, claimed: int) -> None:
        """Count jobs that were claimed from the database; a queue that gives many and has more gets a ready list."""
        if queue.number not in work.tx.hot:
            work.fast_tx.claims_unlisted(queue.number)
        if claimed > limits.fast_batch_jobs_max:
            self._heat.pop(queue.key, None)
            return
        steady = work.steady_ms
        since, count = self._heat.get(queue.key, (steady, 0))
        count += claimed
        if steady - since > limits.fast_rate_ms:
            since, count = steady, claimed
        self._heat[queue.key] = since, count
        if len(self._heat) > limits.fast_queues_max:
            del self._heat[next(iter(self._heat))]
        if (
            count >= self._hot_jobs
            and work.tx.counts(queue).waiting >= self._hot_jobs
            and may_be_hot(queue.settings)
            and not self.rests
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
        """A queue is not hot any more."""
        if self._lines.get(line.key) is line:
            del self._lines[line.key]
            self._heat.pop(line.key, None)

    def worked(self) -> None:
        """A list was filled, and some of what was on one before was handed out since: all is well."""
        self._rest.worked()

    def count(self, given: int) -> None:
        """Count jobs that were handed out."""
        self.lent += given
        self.engine.stats.pulled += given

    @staticmethod
    def new_holder() -> str:
        """Return a name for the holder of a lock."""
        return f"{random_name():016x}"

    def depth(self, key: QueueKey) -> int:
        """Return how many jobs are on the ready list of a queue, as far as this server knows."""
        line = self._lines.get(key)
        return 0 if line is None else line.prefetcher.depth

    # Order.

    async def offer(self, work: UnitOfWork) -> None:
        """Before a commit is answered that made jobs ready in hot queues: have nothing behind them handed out.

        What is on the list of a queue whose settings were changed is taken back.
        """
        for key in work.reconfigured:  # from the answer on, it may be paused, or limited
            await self.clear(key, soon=True)  # this holds up the very lane in which it is done
        best: dict[int, str] = {}
        hot = set(work.tx.heated)
        for jobs in work.readied:
            for job in jobs:
                if job.queue in hot:
                    place = place_of(job)
                    if place < best.get(job.queue, "g"):
                        best[job.queue] = place
        try:
            for queue, place in best.items():
                await self.lists.offer(work.tx.lists_generation, queue, place)
        except FastPathFailed:
            self.failed()

    # Taking back.

    async def pull_out(self, generation: int, queue: int, jobs: Sequence[Job]) -> set[int]:
        """Take some jobs off a ready list; return the ids of those that were on it. If Redis fails, somebody may have them."""
        try:
            return await self.lists.remove(generation, queue, jobs)
        except FastPathFailed:
            self.failed()
            return set()

    async def clear(self, key: QueueKey, *, soon: bool = False, then: Callable[[], None] | None = None) -> None:
        """Take everything back from the ready list of a queue, whichever server has filled it, as far as Redis answers.

        ``soon``, ``then``: see ``take_back``.
        """
        queue = self.engine.store.queue_find(key)
        if queue is not None:
            try:
                await self.take_back(queue.number, self.engine.hot.get(queue.number), soon=soon, then=then)
            except FastPathFailed:
                self.failed()
            except PenstockError as error:  # the database is in trouble: their leases will run out
                log.warning("what was on a ready list could not be taken back", queue=key, error=str(error))

    async def take_back(
        self,
        number: int,
        epoch: int | None,
        filled_before_ms: int | None = None,
        *,
        soon: bool = False,
        then: Callable[[], None] | None = None,
    ) -> bool:
        """Take everything from a ready list, unless it was filled since; tell whether it was done.

        Nothing of it is handed out any more when this returns. ``soon``: it need not be in line again by then. ``then``: what
        it asks the engine for is done in the same transaction, where nobody can have made the list again.
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
        # A lock that is not given back runs out.
        self.start(self.lists.unlock(generation, number, holder), "penstock-fast-unlock")

    async def cool(self) -> None:
        """Take back what nobody wants any more."""
        idle = self.clock.steady_ms() - limits.fast_idle_ms
        hot = dict(self.engine.hot)
        ours = {line.number: line for line in self._lines.values()}
        for number, epoch in hot.items():
            if number in ours or self.engine.leads:
                taken = await self.take_back(number, epoch, idle)
                if taken and number in ours:
                    self.forget(ours[number])

    # Trouble.

    @property
    def is_reachable(self) -> bool:
        """Whether Redis answered last."""
        return not self.lists.link.breaker.is_open

    @property
    def rests(self) -> bool:
        """Tell whether ready lists are done without right now, because there was trouble with them."""
        return self._rest.is_open or self.lists.link.breaker.is_open

    def failed(self) -> None:
        """Redis is in trouble, or has lost something: nobody can be sure of what it has."""
        if not self._rest.is_open:
            self._rest.failed()
        for line in list(self._lines.values()):
            self.forget(line)
        if self._giving_up is None:
            self._giving_up = asyncio.get_running_loop().create_task(self._give_up(), name="penstock-fast-give-up")

    async def _give_up(self) -> None:
        try:
            if await self.engine.run(Abandon(self.generation)):
                log.warning("the ready lists are given up; what was on them comes back", generation=self.generation)
        except PenstockError:
            pass  # the leases of what was set aside will run out
        finally:
            self._giving_up = None

    def saw(self, work: UnitOfWork) -> None:
        """Hear of every commit: somebody may have given up the lists."""
        if work.tx.generation >= self.generation:  # of two that were under way together, either may end first
            self.engine.hot = work.tx.hot
            self.lost = work.tx.lost
        if work.tx.generation > self.generation:
            self.generation = work.tx.generation
            for line in list(self._lines.values()):
                self.forget(line)
            self.daemon.hurry(self.generation)

    def heard(self) -> None:
        """Look whether lists were lost: another server may have said so."""
        self.engine.run_unheard(Look())

    async def close(self) -> None:
        """Say who has what was handed out. What is on lists is for the other servers, or comes back by itself."""
        await self.daemon.stop()
        for line in list(self._lines.values()):
            await line.close()
        self._recovery.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        with contextlib.suppress(PenstockError):
            await self.daemon.note(limits.HOUR_MS)
        if self._giving_up is not None:
            await asyncio.gather(self._giving_up, return_exceptions=True)
