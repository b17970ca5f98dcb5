"""Waits for jobs to end, without polling."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import JobNotFound, QueueMoving, ServerError, TooMany
from penstock.core.events import EventKind
from penstock.core.lifecycle import COMPLETIONS, State
from penstock.engine.api import JobOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.engine.command import JobRef
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork
    from penstock.store.contract import JournalBlock

#: Events after which a job may have ended.
_ENDS = frozenset(
    kind.value
    for kind in (
        EventKind.JOB_COMPLETED,
        EventKind.JOB_FAILED,
        EventKind.JOB_REMOVED,
        EventKind.JOB_DISCARDED,
        EventKind.JOB_EXPIRED,
        EventKind.DLQ_ADDED,
    )
)


class ResultWaiters:
    """The callers that wait for jobs. They get the end of a job when it is as durable as an answer promises."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._waiting: dict[int, list[asyncio.Future[JobOutcome | None]]] = {}
        self._namespaces: dict[int, str] = {}
        self._held: dict[str, int] = {}  #: number of waiting callers of each namespace
        self._checks: set[asyncio.Task[None]] = set()
        self.size = 0

    async def wait(self, namespace: str, ref: JobRef, timeout_ms: int) -> JobOutcome | None:
        """Return how a job ended, at once if it has ended already; None if it did not end within the given time."""
        found = await self._engine.store.job_get(namespace, ref)
        if found is None:
            raise JobNotFound
        job = found[0]
        if (ending := await self._ending(namespace, job)) is not None:
            return ending
        if self.size >= limits.waiters_max:
            raise TooMany("Too many callers wait for jobs to end. Request the job's state instead.")
        held, most = self._held.get(namespace, 0), limits.waiters_max
        self._engine.pool_shares.check("callers that wait for jobs to end", namespace, most=most, taken=self.size, held=held)
        future: asyncio.Future[JobOutcome | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job.id, []).append(future)
        self._namespaces[job.id] = namespace
        self.size += 1
        self._held[namespace] = held + 1
        clock = self._engine.clock
        alarm = clock.call_at(clock.steady_ms() + timeout_ms, lambda: _give_up(future))
        try:
            if self._engine.store.capabilities.is_shared:
                await self._check_job(job.id)  # it may have ended after the first read; a file is read without suspending
            return await future
        finally:
            alarm.cancel()
            self._forget(job.id, future)

    def answered(self, work: UnitOfWork) -> None:
        """Answer the callers that wait for jobs that a batch has ended."""
        if not self._waiting:
            return
        for job, arrow in work.ended:
            for future in self._waiting.get(job.id, ()):
                if not future.done():
                    completed = arrow in COMPLETIONS
                    future.set_result(JobOutcome(completed, work.results.get(job.id)))

    def remote_committed(self, blocks: Sequence[JournalBlock]) -> None:
        """Read the jobs that callers wait for and that another server may have ended."""
        if self._waiting:
            for job_id in {event[2] for block in blocks for event in block.events if event[0] in _ENDS}:
                if job_id in self._waiting:
                    self._start_check(job_id)

    def check_all(self) -> None:
        """Read all jobs that callers wait for, because a notification about an end may have been lost."""
        for job_id in self._waiting:
            self._start_check(job_id)

    def _start_check(self, job_id: int) -> None:
        task = asyncio.get_running_loop().create_task(self._check_unasked(job_id), name="penstock-completion")
        self._checks.add(task)
        task.add_done_callback(self._checks.discard)

    async def _check_unasked(self, job_id: int) -> None:
        with contextlib.suppress(ServerError):  # the store has failed; all jobs are read again when it works again
            await self._check_job(job_id)

    async def _check_job(self, job_id: int) -> None:
        """Read the state of a job, and answer its callers if it has ended."""
        namespace = self._namespaces.get(job_id)
        store = self._engine.store
        found = None if namespace is None else await store.job_get(namespace, job_id)
        if found is None and store.layout is not None and store.layout.may_be_elsewhere:
            for future in self._waiting.get(job_id, ()):
                if not future.done():
                    future.set_exception(QueueMoving())  # or it was removed; the sharded engine finds out
            return
        if found is None or namespace is None:
            ending: JobOutcome | None = JobOutcome(completed=False)
        else:
            ending = await self._ending(namespace, found[0])
        for future in self._waiting.get(job_id, ()):
            if ending is not None and not future.done():
                future.set_result(ending)

    async def _ending(self, namespace: str, job: JobRecord) -> JobOutcome | None:
        if job.state == State.COMPLETED:
            return JobOutcome(completed=True, result=await self._engine.store.result_get(job.id, namespace=namespace))
        return JobOutcome(completed=False) if job.state == State.DEAD else None

    def answer_all_waiters(self) -> None:
        """End all waits, because the server is closing."""
        for futures in self._waiting.values():
            for future in futures:
                _give_up(future)

    def _forget(self, job_id: int, future: asyncio.Future[JobOutcome | None]) -> None:
        futures = self._waiting[job_id]
        futures.remove(future)
        self.size -= 1
        namespace = self._namespaces[job_id]
        held = self._held.pop(namespace) - 1
        if held:
            self._held[namespace] = held
        if not futures:
            del self._waiting[job_id], self._namespaces[job_id]


def _give_up(future: asyncio.Future[JobOutcome | None]) -> None:
    if not future.done():
        future.set_result(None)
