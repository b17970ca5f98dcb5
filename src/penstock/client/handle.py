"""The handle of a job that was enqueued: its state and, when it has ended, its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.client import _clock
from penstock.client._durations import Duration, duration_s
from penstock.client._results import reason_missing
from penstock.client.errors import JobFailed, JobGone, NotFound, ResultMissing, ResultTimeout

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client._backend import Backend
    from penstock.client.models import Job

R = TypeVar("R")
#: How long one request waits for a result, in seconds.
WAIT_S = 30.0


class Handle(Generic[R]):
    """The handle of a job. ``id`` is the job's; keep it to find the job again: ``task.handle(id)``.

    For coroutines, each method has a variant whose name begins with ``a``.
    """

    def __init__(self, job_id: str, backend: Backend, read: Callable[[Any], R]) -> None:
        self.id = job_id
        self._backend = backend
        self._read = read

    def __repr__(self) -> str:
        return f"Handle({self.id!r})"

    def state(self) -> str:
        """Return the state of the job: waiting, delayed, active, completed, failed, waiting-children; or unknown."""
        return self._backend.client.jobs.state(self.id)

    def job(self) -> Job:
        """Return the job. Raises NotFound."""
        return self._backend.client.jobs.get(self.id)

    def cancel(self) -> None:
        """Remove the job. Raises NotFound, or ApiError if it has ended."""
        self._backend.client.jobs.cancel(self.id)

    async def astate(self) -> str:
        """``state`` for coroutines."""
        return await self._backend.async_client.jobs.state(self.id)

    async def ajob(self) -> Job:
        """``job`` for coroutines."""
        return await self._backend.async_client.jobs.get(self.id)

    async def acancel(self) -> None:
        """``cancel`` for coroutines."""
        await self._backend.async_client.jobs.cancel(self.id)

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the job to end, and return what the task returned.

        ``timeout``: how long to wait at most; without limit. Raises JobFailed, JobGone, ResultMissing, or ResultTimeout.
        """
        jobs = self._backend.client.jobs
        ends = None if timeout is None else _clock.steady() + duration_s(timeout, "timeout")
        while True:
            try:
                waited = jobs.wait(self.id, WAIT_S if ends is None else _left(ends))
                if waited.completed:
                    return self._result(waited.result)
                self._check(jobs.get(self.id), ends)
            except NotFound:
                raise JobGone(self.id) from None

    async def aresult(self, timeout: Duration | None = None) -> R:  # noqa: ASYNC109, the server waits
        """``result`` for coroutines."""
        jobs = self._backend.async_client.jobs
        ends = None if timeout is None else _clock.steady() + duration_s(timeout, "timeout")
        while True:
            try:
                waited = await jobs.wait(self.id, WAIT_S if ends is None else _left(ends))
                if waited.completed:
                    return self._result(waited.result)
                self._check(await jobs.get(self.id), ends)
            except NotFound:
                raise JobGone(self.id) from None

    def _result(self, plain: Any) -> R:
        reason = reason_missing(plain)
        if reason is not None:
            raise ResultMissing(self.id, reason)
        return self._read(plain)

    @staticmethod
    def _check(job: Job, ends: float | None) -> None:
        if job.state == "failed":
            raise JobFailed(job.id, job.error)
        if ends is not None and _clock.steady() >= ends:
            raise ResultTimeout(f"Job {job.id} has not ended yet: it is {job.state}")


def _left(ends: float) -> float:
    return min(WAIT_S, max(0.0, ends - _clock.steady()))
