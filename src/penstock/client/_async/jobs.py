"""The jobs door, job by job: push, pull, settle, inspect, change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack

from penstock.client import _replies as replies
from penstock.client._durations import Duration, duration_ms
from penstock.client._names import queue_path
from penstock.client._plain import encode
from penstock.client._request import IF_PUSHED, IF_TAKEN, ApiCall, body, nothing, path, query
from penstock.client.errors import LeaseLost
from penstock.client.options import JobOptions, NewJob, is_remembered, job_fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.client._async.transport import AsyncTransport
    from penstock.client.models import Batch, Job, LogLine, Progress, Waited


class AsyncJobs:
    """Jobs. An attribute of the client: ``client.jobs``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._send = transport.send

    # Producers.

    async def push(self, queue: str, data: Any = None, **options: Unpack[JobOptions]) -> str:
        """Push a job and return its id. ``data`` is any JSON value.

        A job without a ``job_id`` gets one here, so that a push whose answer was lost can be sent again without creating two
        jobs. A job with ``remove_on_complete`` or ``remove_on_fail`` is not sent again, because the server may have finished
        and removed it by then: ConnectionFailed with ``outcome_unknown``.
        """
        fields = job_fields(data, options, named=True)
        where, again = queue_path("/queues/{}/jobs", queue), is_remembered([fields])
        return await self._send(ApiCall("POST", where, replies.ID, encode(fields), repeatable=again, if_unknown=IF_PUSHED))

    async def push_many(self, queue: str, jobs: Iterable[Any], **options: Unpack[JobOptions]) -> list[str]:
        """Push up to 10,000 jobs, all or none, and return their ids in order.

        ``jobs`` are payloads or ``NewJob``s. ``options`` are for all jobs; those of a ``NewJob`` take precedence. Retried
        like ``push``.
        """
        new = [
            job_fields(each.data, {**options, **each.options}, named=True)
            if isinstance(each, NewJob)
            else job_fields(each, options, named=True)
            for each in jobs
        ]
        if not new:
            return []
        where, again = queue_path("/queues/{}/jobs/bulk", queue), is_remembered(new)
        call = ApiCall("POST", where, replies.IDS, encode({"jobs": new}), repeatable=again, if_unknown=IF_PUSHED)
        return await self._send(call)

    # Workers.

    async def pull(
        self, queue: str, *, wait: Duration | None = None, lease: Duration | None = None, owner: str | None = None
    ) -> Job | None:
        """Claim a job, with the ``token`` of its lease; None if no job is ready.

        ``wait``: for how long to wait for a job, up to 60 s; no wait. ``lease``: how long the lease lasts without a
        heartbeat; the queue's setting, 30 s. ``owner``: a name for the holder of the lease, for people to read.
        """
        jobs = await self.pull_many(queue, 1, wait=wait, lease=lease, owner=owner)
        return jobs[0] if jobs else None

    async def pull_many(
        self,
        queue: str,
        count: int,
        *,
        wait: Duration | None = None,
        lease: Duration | None = None,
        owner: str | None = None,
        wait_id: str | None = None,
    ) -> list[Job]:
        """Claim up to ``count`` (1 to 1,000) jobs: as many as are ready, waiting for the first. Arguments as for ``pull``.

        ``wait_id``: a name for this wait, for ``stop_waiting``.
        """
        wait_ms = 0 if wait is None else duration_ms(wait, "wait")
        lease_ms = None if lease is None else duration_ms(lease, "lease")
        wanted = body(count=count, timeout=wait_ms, lockTtl=lease_ms, owner=owner, waitId=wait_id)
        where = queue_path("/queues/{}/jobs/pull-batch", queue)
        call = ApiCall("POST", where, replies.PULLED, wanted, wait_ms=wait_ms, if_unknown=IF_TAKEN)
        return await self._send(call)

    async def stop_waiting(self, wait_id: str) -> int:
        """End the pulls that wait with this ``wait_id``: they are answered without a job. Return the number of these pulls.

        Cancelling a pull closes the connection. A job that becomes ready before the server notices that is leased, but no
        worker receives it.
        """
        return await self._send(ApiCall("POST", "/jobs/stop-waiting", replies.COUNT, body(waitId=wait_id)))

    async def ack(self, job: Job | str, result: Any = None, *, token: str | None = None) -> None:
        """Acknowledge a job. ``token``: of the lease; that of ``job`` if it was pulled. Raises LeaseLost."""
        job_id, token = _held(job, token)
        call = ApiCall("POST", path("/jobs/{}/ack", job_id), nothing, body(result=result, token=token), settles=True)
        try:
            await self._send(call)
        except LeaseLost as error:
            # The answer to an earlier try was lost. If that try counted, or the job is removed, the ack has succeeded.
            if not error.repeated or await self.state(job_id) not in ("completed", "unknown"):
                raise

    async def ack_many(
        self, jobs: Sequence[Job | str], results: Sequence[Any] | None = None, *, tokens: Sequence[str | None] | None = None
    ) -> Batch:
        """Acknowledge up to 10,000 jobs; ``results`` and ``tokens`` are matched by position.

        Returns how many were acknowledged, and why the others were not. Raises LeaseLost if none was.
        """
        ids, held = _all_held(jobs, tokens)
        fields = body(ids=ids, tokens=held, results=None if results is None else list(results))
        return await self._send(ApiCall("POST", "/jobs/ack-batch", replies.BATCH, fields, settles=True))

    async def fail(
        self,
        job: Job | str,
        error: str | None = None,
        *,
        final: bool = False,
        retry_in: Duration | None = None,
        stack: Sequence[str] | None = None,
        token: str | None = None,
    ) -> None:
        """Report a failed attempt: the job is tried again after its backoff, or is dead if this was its last attempt.

        ``final``: it is dead in any case. ``retry_in``: how long to wait, instead of the backoff. ``stack``: the stack
        trace, line by line. Raises LeaseLost.
        """
        job_id, token = _held(job, token)
        delay = None if retry_in is None else duration_ms(retry_in, "retry_in")
        fields = body(error=error, unrecoverable=final or None, delay=delay, stack=stack, token=token)
        try:
            await self._send(ApiCall("POST", path("/jobs/{}/fail", job_id), nothing, fields, settles=True))
        except LeaseLost as lost:
            if not lost.repeated:  # otherwise it counted, or the lease has ended meanwhile: it is not held any more
                raise

    async def release(
        self, jobs: Sequence[Job | str], *, delay: Duration | None = None, tokens: Sequence[str | None] | None = None
    ) -> Batch:
        """Release jobs that were not started: they are ready at once, at their old place, and no attempt is counted.

        ``delay``: they are ready after this time, at the back of the queue, because this worker cannot run them and another
        one may. Such a job has in ``deferred_since`` the time of its first release of this kind.
        """
        ids, held = _all_held(jobs, tokens)
        fields = body(ids=ids, tokens=held, delay=None if delay is None else duration_ms(delay, "delay"))
        return await self._send(ApiCall("POST", "/jobs/release-batch", replies.BATCH, fields, settles=True))

    async def held(
        self, jobs: Sequence[Job | str], *, wait: Duration | None = None, tokens: Sequence[str | None] | None = None
    ) -> Batch:
        """Check which of up to 10,000 leases are still valid: ``errors`` lists the lost ones. Renews no lease.

        ``wait``: for how long to wait, up to 60 s, until one of the jobs is cancelled or discarded; no wait.
        """
        ids, held = _all_held(jobs, tokens)
        wait_ms = 0 if wait is None else duration_ms(wait, "wait")
        fields = body(ids=ids, tokens=held, timeout=wait_ms)
        return await self._send(ApiCall("POST", "/jobs/held-batch", replies.BATCH, fields, wait_ms=wait_ms))

    async def heartbeat(self, job: Job | str, *, lease: Duration | None = None, token: str | None = None) -> None:
        """Renew a lease: it ends after its own length, or ``lease``, from now. Raises LeaseLost."""
        job_id, token = _held(job, token)
        fields = body(token=token, duration=None if lease is None else duration_ms(lease, "lease"))
        await self._send(ApiCall("POST", path("/jobs/{}/heartbeat", job_id), nothing, fields, settles=True))

    async def heartbeat_many(self, jobs: Sequence[Job | str], *, tokens: Sequence[str | None] | None = None) -> Batch:
        """Renew up to 10,000 leases. ``errors`` lists the lost ones. Raises LeaseLost if none is valid."""
        ids, held = _all_held(jobs, tokens)
        return await self._send(
            ApiCall("POST", "/jobs/heartbeat-batch", replies.ALIVE, body(ids=ids, tokens=held), settles=True)
        )

    async def extend(self, job: Job | str, lease: Duration, *, token: str | None = None) -> None:
        """Set the end of a lease to ``lease`` from now. Raises LeaseLost."""
        job_id, token = _held(job, token)
        fields = body(duration=duration_ms(lease, "lease"), token=token)
        await self._send(ApiCall("POST", path("/jobs/{}/extend-lock", job_id), nothing, fields, settles=True))

    async def extend_many(
        self, jobs: Sequence[Job | str], lease: Duration | None = None, *, tokens: Sequence[str | None] | None = None
    ) -> int:
        """Set the ends of leases to ``lease`` from now, or each to its own length; return how many were extended."""
        ids, held = _all_held(jobs, tokens)
        durations = None if lease is None else [duration_ms(lease, "lease")] * len(ids)
        fields = body(ids=ids, tokens=held, durations=durations)
        return await self._send(ApiCall("POST", "/jobs/extend-locks", replies.COUNT, fields, settles=True))

    async def progress(self, job: Job | str, progress: int, message: str | None = None, *, token: str | None = None) -> None:
        """Report the progress of a job, from 0 to 100. Counts as a heartbeat. Raises LeaseLost."""
        job_id, token = _held(job, token)
        fields = body(progress=progress, message=message, token=token)
        await self._send(ApiCall("POST", path("/jobs/{}/progress", job_id), nothing, fields, settles=True))

    # Inspecting.

    async def get(self, job_id: str) -> Job:
        """Return a job, by its id or ``job_id``. Raises NotFound."""
        return await self._send(ApiCall("GET", path("/jobs/{}", job_id), replies.JOB))

    async def state(self, job_id: str) -> str:
        """Return the state of a job; ``unknown`` if it does not exist."""
        return await self._send(ApiCall("GET", path("/jobs/{}/state", job_id), replies.STATE))

    async def result(self, job_id: str) -> Any:
        """Return the result of a job; None if there is no result (yet). See also ``wait``."""
        return await self._send(ApiCall("GET", path("/jobs/{}/result", job_id), replies.RESULT))

    async def get_progress(self, job_id: str) -> Progress:
        """Return the progress of a job. Raises NotFound."""
        return await self._send(ApiCall("GET", path("/jobs/{}/progress", job_id), replies.PROGRESS))

    async def wait(self, job_id: str, timeout: Duration = 30.0) -> Waited:  # noqa: ASYNC109, it is the server that waits
        """Wait until a job has completed, up to ``timeout`` (10 minutes at most). Raises NotFound.

        If the job is dead, it returns at once, with ``completed`` False.
        """
        wait_ms = duration_ms(timeout, "timeout")
        call = ApiCall("POST", path("/jobs/{}/wait", job_id), replies.WAITED, body(timeout=wait_ms), wait_ms=wait_ms)
        return await self._send(call)

    async def children(self, job_id: str, *, limit: int | None = None, offset: int | None = None) -> dict[str, Any]:
        """Return the results of the jobs on which a job depends, by their ids. Raises NotFound."""
        params = query(limit=limit, offset=offset)
        return await self._send(ApiCall("GET", path("/jobs/{}/children", job_id), replies.CHILDREN, params=params))

    async def logs(self, job_id: str) -> list[LogLine]:
        """Return the log of a job, up to 100 lines. Raises NotFound."""
        return await self._send(ApiCall("GET", path("/jobs/{}/logs", job_id), replies.LOGS))

    # Changing.

    async def log(self, job_id: str, message: str, level: Literal["info", "warn", "error"] = "info") -> None:
        """Add a line to the log of a job."""
        fields = body(message=message, level=level)
        await self._send(ApiCall("POST", path("/jobs/{}/logs", job_id), nothing, fields, repeatable=False))

    async def clear_logs(self, job_id: str) -> None:
        """Remove all lines of the log of a job."""
        await self._send(ApiCall("DELETE", path("/jobs/{}/logs", job_id), nothing))

    async def cancel(self, job_id: str) -> None:
        """Remove a job in any state. A worker of this SDK that runs it notices within a second. Raises NotFound."""
        await self._send(ApiCall("DELETE", path("/jobs/{}", job_id), nothing, already=(404,)))

    async def update(self, job_id: str, data: Any) -> None:
        """Replace the payload of a job."""
        await self._send(ApiCall("PUT", path("/jobs/{}/data", job_id), nothing, encode({"data": data})))

    async def set_priority(self, job_id: str, priority: int) -> None:
        """Change the priority of a waiting or delayed job."""
        await self._send(ApiCall("PUT", path("/jobs/{}/priority", job_id), nothing, body(priority=priority)))

    async def promote(self, job_id: str) -> None:
        """Make a delayed job ready now."""
        await self._send(ApiCall("POST", path("/jobs/{}/promote", job_id), nothing))

    async def set_delay(self, job_id: str, delay: Duration) -> None:
        """Set the due time of a delayed job to ``delay`` from now."""
        await self._send(ApiCall("PUT", path("/jobs/{}/delay", job_id), nothing, body(delay=duration_ms(delay, "delay"))))

    async def postpone(self, job_id: str, delay: Duration) -> None:
        """Postpone an active job: it is ready again ``delay`` from now, and no attempt is counted."""
        fields = body(delay=duration_ms(delay, "delay"))
        await self._send(ApiCall("POST", path("/jobs/{}/move-to-delayed", job_id), nothing, fields))

    async def discard(self, job_id: str) -> None:
        """Move a job to the dead letters."""
        await self._send(ApiCall("POST", path("/jobs/{}/discard", job_id), nothing))


def _held(job: Job | str, token: str | None) -> tuple[str, str | None]:
    """Return the id and token of a job that is held."""
    return (job, token) if isinstance(job, str) else (job.id, token or job.token or None)


def _all_held(jobs: Sequence[Job | str], tokens: Sequence[str | None] | None) -> tuple[list[str], list[str | None] | None]:
    """Return the ids and tokens of several jobs that are held."""
    if tokens is not None and len(tokens) != len(jobs):
        raise ValueError("tokens must have as many items as jobs")
    held = [_held(job, None if tokens is None else tokens[place]) for place, job in enumerate(jobs)]
    known = any(token is not None for _, token in held)
    return [job_id for job_id, _ in held], [token for _, token in held] if known else None
