"""The worker loop: the only thread that sends requests to the server. It claims jobs, renews their leases, and settles them.

It has its own event loop, in which no handler runs. So a handler that blocks cannot delay heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from penstock.client import _clock
from penstock.client._async.client import AsyncClient
from penstock.client._cancellations import Cancellations
from penstock.client._deadlines import Deadlines
from penstock.client._execute import DROPPED, timed_out
from penstock.client._held_jobs import HeldJobs
from penstock.client._registration import Registration
from penstock.client._retry import ENDLESS_S
from penstock.client._settlements import Settlements
from penstock.client._unknown_tasks import UnknownTaskPolicy
from penstock.client._worker_options import AHEAD_S, BATCH_MAX, WorkerOptions
from penstock.client.context import JobContext
from penstock.client.errors import ApiError, LeaseLost, PenstockError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from typing import Any

    from penstock.client._executors import Runner
    from penstock.client._settings import Settings
    from penstock.client.models import Job

log = logging.getLogger("penstock.client")

#: How long settling may take at the end, in seconds, in addition to the stop timeout.
LAST_S = 5.0
#: How long cancelled handlers have to end, in seconds.
CANCEL_S = 1.0
#: How long the server has to answer pulls that are stopped, in seconds. Then the worker closes the connection.
LEAVE_S = 2.0
#: A pull may reach the server after the request that stops it, so that request is repeated after so many seconds.
LEAVE_AGAIN_S = 0.1


class WorkerLoop:
    """The loop of one worker. ``stop`` may be called from any thread, all other methods only in its own."""

    def __init__(self, settings: Settings, plan: WorkerOptions, tasks: Sequence[str] = ()) -> None:
        patience = max(plan.lease, settings.retry_for)
        self.settings = settings.but(retry_for=patience, connect_timeout=patience)
        self.plan = plan
        self._tasks = tasks
        self.error: BaseException | None = None  #: why the worker stopped
        self._begun = False
        self._wait_id = _clock.fresh_name()  #: of all waiting pulls of this worker

    @property
    def processed(self) -> int:
        """Number of completed jobs."""
        return self.outbox.processed if self._begun else 0

    @property
    def failed(self) -> int:
        """Number of failed attempts."""
        return self.outbox.failed if self._begun else 0

    # From any thread.

    def start_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind to a loop, before it runs."""
        self._loop = loop
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hand = HeldJobs()
        self._turns = deque(self.plan.queues)  #: queues that may have jobs, in the order in which they are polled
        self._turn = asyncio.Event()  #: set when a watched queue has a job
        self._watchers: set[asyncio.Task[None]] = set()  #: of queues that had no job
        self._asked = 0  #: jobs that may be on their way
        self._pulls = 0  #: requests for jobs that are not answered yet
        policy = UnknownTaskPolicy(self.plan.unknown_task_timeout, self._tasks)
        self.outbox = Settlements(self._hand, loop, self._watched, self._lose, policy)
        self._deadlines = Deadlines(self._hand, loop, self._end_late)
        self._begun = True

    def stop(self) -> None:
        """Claim no more jobs, finish those that run, release the others. Second call: do not wait for those that run."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    # The main loop.

    async def run(self, runner: Runner) -> None:
        """Work until stopped, or until the server refuses with a final error: then ``error`` is set."""
        self.runner = runner
        # Outcomes are kept until the server answers: it may recover in time, and its answer shows whether the lease has ended.
        settling = self.settings.but(retry_for=ENDLESS_S, connect_timeout=ENDLESS_S)
        async with AsyncClient.from_settings(self.settings) as client, AsyncClient.from_settings(settling) as patient:
            self.client, self.outbox.client = client, patient
            presence = Registration(client, self.plan)
            lookouts = [self._watched(self._beat(presence))]
            lookouts.append(self._watched(Cancellations(client, self._hand, self._lose).run()))
            taker = self._watched(self._take())
            await self._stopping.wait()
            await self._stop_taking(taker)
            await self._clear(runner)
            self._deadlines.close()
            for each in lookouts:
                each.cancel()
            await asyncio.gather(*lookouts, return_exceptions=True)
            await presence.say_goodbye()

    async def _stop_taking(self, taker: asyncio.Task[None]) -> None:
        """Wait until the last pull is answered. Its jobs are released.

        A request makes the server answer the waiting pulls. Closing the connection is only for a server that does not answer:
        it notices that late, and until then it leases jobs to a pull that no client waits for any more.
        """
        self._turn.set()
        self._hand.room.set()
        taking = {taker, *self._watchers}
        until = _clock.steady() + LEAVE_S
        try:
            while taking and (left := until - _clock.steady()) > 0:
                if self._pulls:
                    await _clock.within(left, self.client.jobs.stop_waiting(self._wait_id))
                _, taking = await asyncio.wait(taking, timeout=LEAVE_AGAIN_S)
        except (PenstockError, TimeoutError) as error:
            log.warning("The server did not end the pulls of this worker, so the worker closes the connection: %s", error)
        for each in taking:
            each.cancel()
        await asyncio.gather(taker, *self._watchers, return_exceptions=True)

    async def _clear(self, runner: Runner) -> None:
        """Wait for running handlers, up to the stop timeout, and release the other jobs."""
        for context in runner.take_back():
            self.outbox.finished(context, DROPPED)
        if self._hand.count:
            log.info("Running jobs have %g s to end; a second stop releases them", self.plan.stop_timeout)
            await self._wait_until_empty(self.plan.stop_timeout)
        if self._hand.count:
            for context in list(self._hand.held.values()):
                context.cancel()
                runner.cancel(context)
            await self._wait_until_empty(CANCEL_S)
        left = [context for context in self._hand.held.values() if not context.finished]
        allowed = LAST_S + (0 if self._hurry.is_set() else self.plan.stop_timeout)
        try:
            # Threads that ignore the cancellation still have their jobs: these are released, and their outcomes will not count.
            await _clock.within(allowed, self.outbox.hand_in_all(left))
        except TimeoutError:
            log.error(
                "No answer from the server: %d jobs were not settled, they will be delivered again", len(self._hand.held)
            )

    async def _wait_until_empty(self, seconds: float) -> None:
        self._hand.empty.clear()
        if self._hand.count and not self._hurry.is_set():
            waits = [asyncio.create_task(event.wait()) for event in (self._hand.empty, self._hurry)]
            alarm = asyncio.create_task(_clock.pause(seconds))
            await asyncio.wait([*waits, alarm], return_when=asyncio.FIRST_COMPLETED)
            for each in (*waits, alarm):
                each.cancel()

    def _watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that the worker needs: if it fails, the worker stops with its error."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._look_after)
        return task

    def _look_after(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._give_up(error)

    # Claiming.

    def _wanted(self) -> int:
        """Return how many jobs to hold: those that run, and those that will start soon."""
        hands = self.plan.concurrency - self.runner.hung
        return hands + min(self.plan.prefetch, int(self._hand.pace.rate * AHEAD_S)) if hands > 0 else 0

    def _free(self) -> int:
        return min(BATCH_MAX, self._wanted() - self._hand.count)

    def _shed(self) -> None:
        """Release jobs that were prefetched while jobs were quick, if they are slow now: other workers may be idle."""
        surplus = self._hand.count - self._wanted()
        if surplus <= self.plan.concurrency:
            return
        not_begun = self.runner.take_back()
        kept = max(0, len(not_begun) - surplus)
        self.runner.submit(not_begun[:kept])
        for context in not_begun[kept:]:
            self.outbox.finished(context, DROPPED)

    async def _take(self) -> None:
        """Pull from queue after queue, in turn, its share of the free capacity. Queues without jobs are watched."""
        plan = self.plan
        alone = len(plan.queues) == 1  # waiting does not delay another queue's turn
        while not self._stopping.is_set():
            if not self._turns:
                self._turn.clear()
                await self._turn.wait()
                continue
            if (free := self._free()) <= 0:
                self._hand.room.clear()
                await self._hand.room.wait()
                continue
            queue = self._turns.popleft()
            self._asked = -(-free // (len(self._turns) + 1))
            try:
                jobs = await self._pull(queue, self._asked, plan.wait if alone else 0)
            finally:
                self._asked = 0
            self._accept(jobs)
            if jobs or alone:
                self._turns.append(queue)
            else:
                watcher = self._watched(self._watch(queue))
                self._watchers.add(watcher)
                watcher.add_done_callback(self._watchers.discard)

    async def _watch(self, queue: str) -> None:
        """Wait for a job of a queue that had none; then that queue has its turn again.

        All queues are watched, even if the capacity is smaller. Otherwise jobs would wait for jobs of other queues. If the
        worker has no capacity when the job arrives, it releases the job at once, because another worker may have some.
        """
        while not (jobs := await self._pull(queue, 1, self.plan.wait)):
            if self._stopping.is_set():
                return
        self._accept(jobs, begin=self._free() - self._asked > 0)
        self._turns.append(queue)
        self._turn.set()

    async def _pull(self, queue: str, count: int, wait: float) -> Sequence[Job]:
        """Pull jobs, as soon as the server answers; none if the worker stops. Raises ApiError if the refusal is final."""
        plan, trouble_s = self.plan, 0.1
        while not self._stopping.is_set():
            self._pulls += 1
            try:
                return await self.client.jobs.pull_many(
                    queue, count, wait=wait, lease=plan.lease, owner=plan.name, wait_id=self._wait_id
                )
            except PenstockError as error:
                if isinstance(error, ApiError) and not error.is_temporary and not error.outcome_unknown:
                    raise
                log.warning("No jobs of %s for now: %s", queue, error)
            finally:
                self._pulls -= 1
            with contextlib.suppress(TimeoutError):
                await _clock.within(_clock.jittered(trouble_s), self._stopping.wait())
            trouble_s = min(trouble_s * 2, 10.0)
        return ()

    def _give_up(self, error: BaseException) -> None:
        log.error("The worker stops: %s", error)
        self.error = self.error or error
        self._stopping.set()

    def _accept(self, jobs: Sequence[Job], *, begin: bool = True) -> None:
        """Start jobs, or release them if they must not be started, or if the worker stops."""
        now = _clock.steady()
        contexts = [JobContext(job, self.outbox.report, now) for job in jobs]
        self._hand.take(contexts)
        self._deadlines.watch(contexts)
        if not begin or self._stopping.is_set():
            for context in contexts:
                self.outbox.finished(context, DROPPED)
        elif contexts:
            self.runner.submit(contexts)

    # Heartbeats.

    async def _beat(self, presence: Registration) -> None:
        while True:
            await presence.show(self._hand.count, self.outbox.processed, self.outbox.failed)
            await _clock.pause(self.plan.heartbeat)
            self._shed()
            held = list(self._hand.held.values())  # including outcomes that are not sent yet
            for start in range(0, len(held), BATCH_MAX):
                await self._renew(held[start : start + BATCH_MAX])

    async def _renew(self, contexts: Sequence[JobContext]) -> None:
        try:
            batch = await self.client.jobs.heartbeat_many([context.info for context in contexts])
        except LeaseLost:
            lost = list(contexts)
        except PenstockError as error:
            log.warning("A heartbeat failed: %s", error)
            return
        else:
            refused = {error.id for error in batch.errors}
            lost = [context for context in contexts if context.id in refused]
        for context in lost:
            self._lose(context)

    def _lose(self, context: JobContext) -> None:
        """Cancel the handler of a job whose lease is lost."""
        if context.finished or not self._hand.drop(context):
            return
        if context.timed_out:
            log.warning("Job %s: its handler did not end with its timeout. The next attempt may run beside it.", context.id)
            return
        log.warning("Job %s was removed, or its lease has ended: its handler is requested to stop", context.id)
        context.cancel()
        self.runner.cancel(context)

    def _end_late(self, late: Sequence[JobContext]) -> None:
        """Release jobs that were not started in time, and end attempts whose timeout is over."""
        waiting = {context for context in late if not context.begun}
        if waiting:
            back = self.runner.take_back()
            self.runner.submit([context for context in back if context not in waiting])
            for context in back:
                if context in waiting:
                    self.outbox.finished(context, DROPPED)
        for context in late:
            if context.begun:
                self._time_out(context)
        if self.runner.hung >= self.plan.concurrency:  # no thread is left that could start the waiting jobs
            for context in self.runner.take_back():
                self.outbox.finished(context, DROPPED)

    def _time_out(self, context: JobContext) -> None:
        """End an attempt. A coroutine is cancelled. A thread cannot be cancelled, so its job is abandoned."""
        context.timed_out = True
        context.cancel()
        stack = self.runner.time_out(context)
        if stack is not None:
            remark = ". Its thread could not be stopped, so the next attempt may run beside it"
            self.outbox.finished(context, timed_out(context, stack, remark if stack else ""))
