# Made from _async/queues.py by make sdk. Change that one.
"""The jobs door, queue by queue: counts and lists, pausing and emptying, dead letters, limits and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from penstock.client import _replies as replies
from penstock.client._durations import Duration, duration_ms
from penstock.client._names import queue_path
from penstock.client._request import ApiCall, body, nothing, query

if TYPE_CHECKING:
    from penstock.client._sync.transport import Transport
    from penstock.client.models import Cleaned, Counts, DlqSettings, Job, StallSettings


class Queues:
    """Queues of jobs. An attribute of the client: ``client.queues``."""

    def __init__(self, transport: Transport) -> None:
        self._send = transport.send

    # Inspecting.

    def names(self) -> list[str]:
        """Return the names of all queues of the namespace."""
        return self._send(ApiCall("GET", "/queues", replies.QUEUES))

    def jobs(self, queue: str, state: str | None = None, *, limit: int = 100, offset: int = 0) -> list[Job]:
        """Return jobs, oldest first. ``state``: one, or several separated by commas; all states. ``limit``: 10,000 at most."""
        params = query(state=state, limit=limit, offset=offset)
        return self._send(ApiCall("GET", queue_path("/queues/{}/jobs/list", queue), replies.JOBS, params=params))

    def counts(self, queue: str) -> Counts:
        """Return the number of jobs in each state."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/counts", queue), replies.COUNTS))

    def count(self, queue: str) -> int:
        """Return the number of jobs that are waiting, delayed or active."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/count", queue), replies.COUNT))

    def priority_counts(self, queue: str) -> dict[int, int]:
        """Return the number of waiting and delayed jobs for each priority."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/priority-counts", queue), replies.PRIORITY_COUNTS))

    # Pausing and emptying.

    def is_paused(self, queue: str) -> bool:
        """Return whether a queue is paused."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/paused", queue), replies.PAUSED))

    def pause(self, queue: str) -> None:
        """Deliver no jobs until ``resume``. Leases that exist stay valid."""
        self._send(ApiCall("POST", queue_path("/queues/{}/pause", queue), nothing))

    def resume(self, queue: str) -> None:
        """Deliver jobs again."""
        self._send(ApiCall("POST", queue_path("/queues/{}/resume", queue), nothing))

    def drain(self, queue: str) -> int:
        """Remove all waiting and delayed jobs; return how many."""
        return self._send(ApiCall("POST", queue_path("/queues/{}/drain", queue), replies.COUNT))

    def obliterate(self, queue: str) -> None:
        """Remove a queue with all its jobs, in any state."""
        self._send(ApiCall("POST", queue_path("/queues/{}/obliterate", queue), nothing))

    def clean(self, queue: str, *, older_than: Duration = 0, state: str | None = None, limit: int = 1000) -> Cleaned:
        """Remove old jobs. ``state``: completed, failed, …; waiting and delayed. ``limit``: the largest number of jobs."""
        fields = body(grace=duration_ms(older_than, "older_than"), state=state, limit=limit)
        return self._send(ApiCall("POST", queue_path("/queues/{}/clean", queue), replies.CLEANED, fields))

    def promote(self, queue: str, count: int | None = None) -> int:
        """Make delayed jobs ready now: ``count`` of them, or all; return how many."""
        call = ApiCall(
            "POST", queue_path("/queues/{}/promote-jobs", queue), replies.COUNT, body(count=count), repeatable=count is None
        )
        return self._send(call)

    def retry_completed(self, queue: str, job_id: str | None = None) -> int:
        """Run a completed job again, or all of them; return how many."""
        fields = body(id=job_id)
        return self._send(
            ApiCall("POST", queue_path("/queues/{}/retry-completed", queue), replies.COUNT, fields, repeatable=False)
        )

    # Dead letters.

    def dlq(self, queue: str, count: int = 100) -> list[Job]:
        """Return dead letters, with ``reason`` and ``failed_at``. They stay where they are."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/dlq", queue), replies.JOBS, params=query(count=count)))

    def retry_dlq(self, queue: str, job_id: str | None = None, *, count: int | None = None) -> int:
        """Move a dead letter back to its queue, or the oldest ``count``, or all; return how many."""
        fields = body(jobId=job_id, count=count)
        call = ApiCall("POST", queue_path("/queues/{}/dlq/retry", queue), replies.COUNT, fields, repeatable=count is None)
        return self._send(call)

    def purge_dlq(self, queue: str) -> int:
        """Remove all dead letters; return how many."""
        return self._send(ApiCall("POST", queue_path("/queues/{}/dlq/purge", queue), replies.COUNT))

    # Limits and settings.

    def rate_limit(self, queue: str) -> int | None:
        """Return the limit of jobs delivered per second; None: there is no limit."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/rate-limit", queue), replies.LIMIT))

    def set_rate_limit(self, queue: str, limit: int) -> None:
        """Set the limit of jobs delivered per second."""
        self._send(ApiCall("PUT", queue_path("/queues/{}/rate-limit", queue), nothing, body(limit=limit)))

    def clear_rate_limit(self, queue: str) -> None:
        """Remove the limit of jobs delivered per second."""
        self._send(ApiCall("DELETE", queue_path("/queues/{}/rate-limit", queue), nothing))

    def concurrency(self, queue: str) -> int | None:
        """Return the limit of jobs that are active at once; None: there is no limit."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/concurrency", queue), replies.LIMIT))

    def set_concurrency(self, queue: str, limit: int) -> None:
        """Set the limit of jobs that are active at once, over all workers."""
        self._send(ApiCall("PUT", queue_path("/queues/{}/concurrency", queue), nothing, body(limit=limit)))

    def clear_concurrency(self, queue: str) -> None:
        """Remove the limit of jobs that are active at once."""
        self._send(ApiCall("DELETE", queue_path("/queues/{}/concurrency", queue), nothing))

    def stall_config(self, queue: str) -> StallSettings:
        """Return the settings that decide when a job without heartbeats counts as stalled."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/stall-config", queue), replies.STALL))

    def set_stall_config(
        self,
        queue: str,
        *,
        enabled: bool | None = None,
        stall_interval: Duration | None = None,
        max_stalls: int | None = None,
        grace_period: Duration | None = None,
    ) -> None:
        """Change when a job without heartbeats counts as stalled; settings that are not given stay."""
        fields = body(
            enabled=enabled,
            stallInterval=None if stall_interval is None else duration_ms(stall_interval, "stall_interval"),
            maxStalls=max_stalls,
            gracePeriod=None if grace_period is None else duration_ms(grace_period, "grace_period"),
        )
        self._send(ApiCall("PUT", queue_path("/queues/{}/stall-config", queue), nothing, fields))

    def dlq_config(self, queue: str) -> DlqSettings:
        """Return the settings for dead letters."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/dlq-config", queue), replies.DLQ))

    def set_dlq_config(
        self,
        queue: str,
        *,
        auto_retry: bool | None = None,
        auto_retry_interval: Duration | None = None,
        max_auto_retries: int | None = None,
        max_age: Duration | None = None,
        max_entries: int | None = None,
    ) -> None:
        """Change the settings for dead letters; settings that are not given stay."""
        interval = None if auto_retry_interval is None else duration_ms(auto_retry_interval, "auto_retry_interval")
        fields = body(
            autoRetry=auto_retry,
            autoRetryInterval=interval,
            maxAutoRetries=max_auto_retries,
            maxAge=None if max_age is None else duration_ms(max_age, "max_age"),
            maxEntries=max_entries,
        )
        self._send(ApiCall("PUT", queue_path("/queues/{}/dlq-config", queue), nothing, fields))

    def mode(self, queue: str) -> str:
        """Return when pushes are answered: once they are in the database (direct), or in the server's log (buffered)."""
        return self._send(ApiCall("GET", queue_path("/queues/{}/mode", queue), replies.MODE))

    def set_mode(self, queue: str, mode: Literal["direct", "buffered"]) -> None:
        """Change when pushes are answered."""
        self._send(ApiCall("PUT", queue_path("/queues/{}/mode", queue), nothing, body(mode=mode)))
