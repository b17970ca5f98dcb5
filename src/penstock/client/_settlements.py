"""Settling of a worker's jobs: outcomes in batches, and the reports of handlers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

from penstock.client import _results
from penstock.client._execute import DROPPED, Deferred, Done, Dropped, Failed, Outcome
from penstock.client._results import NULL
from penstock.client._stack import STACK_LINES, last_lines
from penstock.client._worker_options import BATCH_MAX
from penstock.client.errors import ApiError, LeaseLost, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from penstock.client._async.client import AsyncClient
    from penstock.client._held_jobs import HeldJobs
    from penstock.client._unknown_tasks import UnknownTaskPolicy
    from penstock.client.context import JobContext

log = logging.getLogger("penstock.client")

#: Requests that are about one job each (failures, reports) and may run at the same time.
SINGLES_MAX = 16
#: Results of one request have about this many bytes; a request may have 10 MB.
RESULTS_BYTES = 1_000_000
#: How many characters of an error are logged.
LINE_CHARS = 500
#: How many lines of its stack are logged.
LOG_LINES = 100


class _Batch:
    """Outcomes that are sent together."""

    def __init__(self) -> None:
        self.done: list[tuple[JobContext, Done]] = []
        self.size = 0  #: bytes of their results
        self.dropped: list[JobContext] = []
        self.deferred: dict[int, list[JobContext]] = {}  #: by the delay, in seconds


class Settlements:
    """Sends outcomes and reports. ``finished`` and ``report`` may be called from any thread, all other methods in the loop.

    ``start`` starts a task whose failure stops the worker; ``lose`` is called for jobs whose lease is lost; ``policy``
    decides about jobs that this worker cannot run.
    """

    client: AsyncClient

    def __init__(
        self,
        hand: HeldJobs,
        loop: asyncio.AbstractEventLoop,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        lose: Callable[[JobContext], None],
        policy: UnknownTaskPolicy,
    ) -> None:
        self.processed = 0
        self.failed = 0
        self._hand = hand
        self._loop = loop
        self._start = start
        self._lose = lose
        self._policy = policy
        self._outcomes: deque[tuple[JobContext, Outcome]] = deque()
        self._woken = False
        self._settling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._singles = asyncio.Semaphore(SINGLES_MAX)

    def finished(self, context: JobContext, outcome: Outcome) -> None:
        """Record the outcome of a job, once. Of many in a row, the first wakes the loop."""
        if not context.finish():  # an abandoned thread has ended: that makes room
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand.room.set)
            return
        self._outcomes.append((context, outcome))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the worker has stopped without waiting for this one
                self._loop.call_soon_threadsafe(self._wake)

    def report(self, context: JobContext) -> None:
        """Schedule the sending of a handler's reports about its job."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._send_reports, context)

    async def hand_in_all(self, left: Sequence[JobContext]) -> None:
        """Release the remaining jobs, and wait until all outcomes are sent."""
        self._outcomes.extend((context, DROPPED) for context in left)
        self._wake()
        while self._settling is not None or self._tasks:
            await asyncio.gather(*self._tasks, *([self._settling] if self._settling else []))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._start(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _wake(self) -> None:
        self._woken = False
        if self._settling is None and self._outcomes:
            self._settling = self._start(self._settle())

    async def _settle(self) -> None:
        """Send the outcomes that have gathered; new ones form the next batch."""
        try:
            while self._outcomes:
                batch = self._gather()
                if batch.done:
                    await self._ack(batch.done)
                if batch.dropped:
                    await self._release(batch.dropped)
                for seconds, contexts in batch.deferred.items():
                    await self._release(contexts, seconds)
        finally:
            self._settling = None

    def _gather(self) -> _Batch:
        """Take the outcomes that can be sent together; the others are sent one by one."""
        batch = _Batch()
        for _ in range(min(len(self._outcomes), BATCH_MAX)):
            if batch.size > RESULTS_BYTES:
                break
            context, outcome = self._outcomes.popleft()
            if not self._hand.holds(context):  # lost, or released already
                self._hand.leave([context])
            elif context.reporter is not None or context.has_reports:
                self._send_reports(context)
                self._spawn(self._after_reports(context, outcome))
            elif isinstance(outcome, Done):
                batch.done.append((context, outcome))
                batch.size += len(memoryview(outcome.result))
            elif isinstance(outcome, Dropped):
                batch.dropped.append(context)
            elif isinstance(outcome, Deferred):
                self._defer(batch, context, outcome)
            else:
                self._spawn(self._fail(context, outcome))
        return batch

    def _defer(self, batch: _Batch, context: JobContext, outcome: Deferred) -> None:
        decision = self._policy.decide(context.info, outcome.task)
        if isinstance(decision, Failed):
            self._spawn(self._fail(context, decision))
        else:
            batch.deferred.setdefault(decision, []).append(context)

    async def _after_reports(self, context: JobContext, outcome: Outcome) -> None:
        """Send the outcome of a job after the reports of its handler."""
        if context.reporter is not None:
            await context.reporter
        self._outcomes.append((context, outcome))
        self._wake()

    async def _ack(self, done: Sequence[tuple[JobContext, Done]]) -> None:
        contexts = [context for context, _ in done]
        results = [outcome.result for _, outcome in done]
        given = None if all(result is NULL for result in results) else results
        try:
            batch = await self.client.jobs.ack_many([context.info for context in contexts], given)
            for error in batch.errors:
                log.warning("The ack of job %s was not counted: %s", error.id, error.error)
            self.processed += batch.count
        except LeaseLost as error:
            known = "may have been counted by an earlier try" if error.repeated else "was not counted"
            log.warning("The ack of %d jobs %s: %s", len(contexts), known, error)
        except ApiError as error:
            if error.status not in (400, 413):
                log.error("The acks of %d jobs were refused, they will be delivered again: %s", len(contexts), error)
            elif len(done) > 1:  # one bad result must not affect the others
                for each in done:
                    await self._ack([each])
                return
            elif not _results.is_missing(results[0]):  # the task succeeded, and must not run again because of its result
                reason = f"The result was not kept, because the server refused it: {error}"
                log.warning("Job %s is done. %s", contexts[0].id, reason)
                await self._ack([(contexts[0], Done(_results.missing(reason)))])
                return
            else:
                await self._fail(contexts[0], Failed(f"The ack of the job was refused: {error}", [], final=True))
                return
        except PenstockError as error:
            log.error("%d jobs could not be settled, they will be delivered again: %s", len(contexts), error)
        self._hand.leave(contexts)

    async def _fail(self, context: JobContext, failed: Failed) -> None:
        retry_in = None if failed.retry_ms is None else failed.retry_ms / 1000
        limit = context.info.stack_trace_limit
        stack = last_lines(failed.stack, STACK_LINES if limit is None else limit)
        self.failed += 1
        _say_so(context, failed)
        async with self._singles:
            try:
                await self.client.jobs.fail(context.info, failed.error, final=failed.final, retry_in=retry_in, stack=stack)
            except PenstockError as error:
                log.warning("The failure of job %s was not counted: %s", context.id, error)
        self._hand.leave([context])

    async def _release(self, contexts: Sequence[JobContext], delay: float | None = None) -> None:
        try:
            await self.client.jobs.release([context.info for context in contexts], delay=delay)
        except PenstockError as error:
            log.warning("%d jobs could not be released, they will be delivered again: %s", len(contexts), error)
        self._hand.leave(contexts)

    # Reports.

    def _send_reports(self, context: JobContext) -> None:
        if context.reporter is None and self._hand.holds(context):
            context.reporter = self._spawn(self._report(context))

    async def _report(self, context: JobContext) -> None:
        try:
            while (reports := context.take_reports()) is not None:
                async with self._singles:
                    if reports.progress is not None:
                        await self._tell(context, self.client.jobs.progress(context.info, *reports.progress))
                    for message, level in reports.lines:
                        await self._tell(context, self.client.jobs.log(context.id, message, level))
        except LeaseLost:
            self._lose(context)
        except PenstockError as error:
            log.warning("A report of job %s was lost: %s", context.id, error)
        finally:
            context.reporter = None

    @staticmethod
    async def _tell(context: JobContext, report: Coroutine[Any, Any, None]) -> None:
        """Send one report. A report that cannot be encoded must not stop the worker, nor later reports."""
        try:
            await report
        except PenstockError:
            raise
        except Exception as error:  # noqa: BLE001, whatever it is
            log.warning("A report of job %s could not be sent: %s: %s", context.id, type(error).__name__, error)


def _say_so(context: JobContext, failed: Failed) -> None:
    """Log a failed attempt in one line, and its stack."""
    data = context.data
    what = data.get("task", context.queue) if isinstance(data, dict) else context.queue
    error = " ".join(failed.error[:LINE_CHARS].split())
    where = "".join(f"\n{line}" for line in last_lines(failed.stack, LOG_LINES))
    log.warning(
        "%s: attempt %d of %d failed, job %s: %s%s",
        what, context.attempt, context.info.max_attempts, context.id, error, where,
    )  # fmt: skip
