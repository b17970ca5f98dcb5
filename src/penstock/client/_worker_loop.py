"""The worker's desk: the one thread that talks to the server. It takes jobs, keeps them alive, and sees to their end.

It runs in a loop of its own, in which no handler ever runs: so a handler that blocks cannot starve heartbeats.
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
from penstock.client._deferring import Deferring
from penstock.client._execute import DROPPED, timed_out
from penstock.client._held_jobs import HeldJobs
from penstock.client._registration import Registration
from penstock.client._retry import ENDLESS_S
from penstock.client._settlements import Settlements
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

#: How long handing in may take at the end, in seconds, beyond what stopping may.
LAST_S = 5.0
#: How long cancelled handlers have to end, in seconds.
CANCEL_S = 1.0
#: How long the server has to answer pulls that are stopped, in seconds. Then the worker hangs up.
LEAVE_S = 2.0
#: A pull may reach the server after the request that stops it, so that is sent again after so many seconds.
LEAVE_AGAIN_S = 0.1


class WorkerLoop:
    """See above. ``stop`` may be called from any thread, everything else is of its own."""

    def __init__(self, settings: Settings, plan: WorkerOptions, tasks: Sequence[str] = ()) -> None:
        patience = max(plan.lease, settings.retry_for)
        self.settings = settings.but(retry_for=patience, connect_timeout=patience)
        self.plan = plan
        self._tasks = tasks
        self.error: BaseException | None = None  #: why it gave up
        self._begun = False
        self._wait_id = _clock.fresh_name()  #: of all pulls of this worker that wait

    @property
    def processed(self) -> int:
        """How many jobs were done."""
        return self.outbox.processed if self._begun else 0

    @property
    def failed(self) -> int:
        """How many attempts have failed."""
        return self.outbox.failed if self._begun else 0

    # From any thread.

    def start_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to a loop, before it runs."""
        self._loop = loop
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._hand = HeldJobs()
        self._turns = deque(self.plan.queues)  #: queues that may have jobs, in the order in which they are asked
        self._turn = asyncio.Event()  #: set when a queue that was watched has a job
        self._watchers: set[asyncio.Task[None]] = set()  #: of queues that had none
        self._asked = 0  #: jobs that may be on their way
        self._pulls = 0  #: requests for jobs that are not answered yet
        deferring = Deferring(self.plan.unknown_task_timeout, self._tasks)
        self.outbox = Settlements(self._hand, loop, self._watched, self._lose, deferring)
        self._deadlines = Deadlines(self._hand, loop, self._end_late)
        self._begun = True

    def stop(self) -> None:
        """Take no more jobs, finish those that run, give back the rest. Twice: do not wait for those that run."""
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    # The whole of it.

    async def run(self, runner: Runner) -> None:
        """Work until told to stop, or until the server refuses for good: then ``error`` says why."""
        self.runner = runner
        # What is finished is held until the server answers: it may be back in time, and then it says whether the lease is over.
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
        """Wait until the last pull is answered. What it brings is given back.

        The server is asked to answer pulls that wait. Hanging up is only for a server that does not answer: it notices that
        late, and until then it leases jobs to a pull that no client waits for any more.
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
            log.warning("The server did not end the pulls of this worker, so it hangs up: %s", error)
        for each in taking:
            each.cancel()
        await asyncio.gather(taker, *self._watchers, return_exceptions=True)

    async def _clear(self, runner: Runner) -> None:
        """Empty the desk: wait for those who work, as long as agreed, and give back the rest."""
        for context in runner.take_back():
            self.outbox.finished(context, DROPPED)
        if self._hand.count:
            log.info("Jobs that run have %g s to end; told to stop again, they are given back", self.plan.stop_timeout)
            await self._wait_until_empty(self.plan.stop_timeout)
        if self._hand.count:
            for context in list(self._hand.held.values()):
                context.cancel()
                runner.cancel(context)
            await self._wait_until_empty(CANCEL_S)
        left = [context for context in self._hand.held.values() if not context.finished]
        allowed = LAST_S + (0 if self._hurry.is_set() else self.plan.stop_timeout)
        try:
            # Threads that do not listen still have theirs: it is given back, and their outcome will not count.
            await _clock.within(allowed, self.outbox.hand_in_all(left))
        except TimeoutError:
            log.error("The server is away: %d jobs could not be handed in, they will come again", len(self._hand.held))

    async def _wait_until_empty(self, seconds: float) -> None:
        self._hand.empty.clear()
        if self._hand.count and not self._hurry.is_set():
            waits = [asyncio.create_task(event.wait()) for event in (self._hand.empty, self._hurry)]
            alarm = asyncio.create_task(_clock.pause(seconds))
            await asyncio.wait([*waits, alarm], return_when=asyncio.FIRST_COMPLETED)
            for each in (*waits, alarm):
                each.cancel()

    def _watched(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start something without which a worker is none: if it breaks, the worker stops and says why."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._look_after)
        return task

    def _look_after(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._give_up(error)

    # Taking.

    def _wanted(self) -> int:
        """Return how many jobs to have in hand: those that run, and those that will in a moment."""
        hands = self.plan.concurrency - self.runner.hung
        return hands + min(self.plan.prefetch, int(self._hand.pace.rate * AHEAD_S)) if hands > 0 else 0

    def _free(self) -> int:
        return min(BATCH_MAX, self._wanted() - self._hand.count)

    def _shed(self) -> None:
        """Give back what was taken ahead when jobs were quick, if they are slow now: others may be idle."""
        surplus = self._hand.count - self._wanted()
        if surplus <= self.plan.concurrency:
            return
        not_begun = self.runner.take_back()
        kept = max(0, len(not_begun) - surplus)
        self.runner.submit(not_begun[:kept])
        for context in not_begun[kept:]:
            self.outbox.finished(context, DROPPED)

    async def _take(self) -> None:
        """Ask queue after queue, in turn, for its share of the jobs there are hands for. Those that have none are watched."""
        plan = self.plan
        alone = len(plan.queues) == 1  # nobody else's turn is held up by waiting
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
        """Wait for a job of a queue that had none; then it is that queue's turn again.

        All queues are watched, however few hands there are, or jobs would wait for each other's queues. If all hands are full
        when the job comes, it is given back at once: another worker may have one free.
        """
        while not (jobs := await self._pull(queue, 1, self.plan.wait)):
            if self._stopping.is_set():
                return
        self._accept(jobs, begin=self._free() - self._asked > 0)
        self._turns.append(queue)
        self._turn.set()

    async def _pull(self, queue: str, count: int, wait: float) -> Sequence[Job]:
        """Take jobs, as soon as the server answers; none if the worker stops. Raises ApiError if it refuses for good."""
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
        """Begin jobs, or give them back if that is not to be, or if the worker stops."""
        now = _clock.steady()
        contexts = [JobContext(job, self.outbox.report, now) for job in jobs]
        self._hand.take(contexts)
        self._deadlines.watch(contexts)
        if not begin or self._stopping.is_set():
            for context in contexts:
                self.outbox.finished(context, DROPPED)
        elif contexts:
            self.runner.submit(contexts)

    # Staying alive.

    async def _beat(self, presence: Registration) -> None:
        while True:
            await presence.show(self._hand.count, self.outbox.processed, self.outbox.failed)
            await _clock.pause(self.plan.heartbeat)
            self._shed()
            held = list(self._hand.held.values())  # what is finished and not handed in yet, too
            for start in range(0, len(held), BATCH_MAX):
                await self._renew(held[start : start + BATCH_MAX])

    async def _renew(self, contexts: Sequence[JobContext]) -> None:
        try:
            batch = await self.client.jobs.heartbeat_many([context.info for context in contexts])
        except LeaseLost:
            lost = list(contexts)
        except PenstockError as error:
            log.warning("A heartbeat was not heard: %s", error)
            return
        else:
            refused = {error.id for error in batch.errors}
            lost = [context for context in contexts if context.id in refused]
        for context in lost:
            self._lose(context)

    def _lose(self, context: JobContext) -> None:
        """Tell a handler that its job is not ours any more."""
        if context.finished or not self._hand.drop(context):
            return
        if context.timed_out:
            log.warning("Job %s: its handler did not end with its timeout. The next attempt may run beside it.", context.id)
            return
        log.warning("Job %s was removed, or its lease has ended: its handler is told to stop", context.id)
        context.cancel()
        self.runner.cancel(context)

    def _end_late(self, late: Sequence[JobContext]) -> None:
        """Give back jobs that were not begun in time, and end attempts whose time is over."""
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
        if self.runner.hung >= self.plan.concurrency:  # no thread is left that could begin what waits
            for context in self.runner.take_back():
                self.outbox.finished(context, DROPPED)

    def _time_out(self, context: JobContext) -> None:
        """End an attempt. A coroutine is cancelled; a thread cannot be, so its job is abandoned."""
        context.timed_out = True
        context.cancel()
        stack = self.runner.time_out(context)
        if stack is not None:
            remark = ". Its thread could not be stopped, so the next attempt may run beside it"
            self.outbox.finished(context, timed_out(context, stack, remark if stack else ""))
