"""When a failed job is retried, and when it becomes dead. Pure functions of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.job import BackoffType, DeathReason, JobFlag, JobRecord, details_of
from penstock.core.lifecycle import Arrow

if TYPE_CHECKING:
    from collections.abc import Sequence


def retry_delay_ms(backoff_ms: int, failures_before: int) -> int:
    """Return the backoff after a failure: ``min(backoff * 2^attempt, 24 h)``.

    >>> [retry_delay_ms(1000, n) for n in range(4)]
    [1000, 2000, 4000, 8000]
    >>> retry_delay_ms(1000, 999)
    86400000
    """
    # 2^27 ms is already more than a day; shifting further would only make huge integers.
    return min(backoff_ms << min(failures_before, 27), limits.retry_delay_ms_max)


def after_failure(
    job: JobRecord, now_ms: int, *, final: bool = False, delay_ms: int | None = None, plan_ms: Sequence[int] | None = None
) -> tuple[Arrow, int]:
    """Return the effect of a reported failure: the arrow to take and, for a retry, its time.

    ``final``: do not retry. ``delay_ms``: the delay that the worker requests; replaces the job's own backoff. ``plan_ms``:
    the delays after the first failure, the second and so on; replace the job's own backoff and attempts: after the last of
    them the job becomes dead.
    """
    if final or job.attempts + 1 >= (job.max_attempts if plan_ms is None else len(plan_ms) + 1):
        return (Arrow.BURY_REMOVE if job.has(JobFlag.REMOVE_ON_FAIL) else Arrow.BURY), 0
    delay = delay_ms if plan_ms is None else plan_ms[job.attempts]
    if delay is None:
        delay = retry_delay_ms(job.backoff, job.attempts) if job.details is None else _own_delay_ms(job)
    return (Arrow.RETRY, now_ms + delay) if delay > 0 else (Arrow.RETRY_NOW, now_ms)


def _own_delay_ms(job: JobRecord) -> int:
    """Return the delay of a job that may have its own backoff rule."""
    details = details_of(job)
    delay = retry_delay_ms(job.backoff, 0 if details.backoff_type == BackoffType.FIXED else job.attempts)
    return delay if details.backoff_max is None else min(delay, details.backoff_max)


def after_lease_expiry(job: JobRecord, max_stalls: int, steady_ms: int) -> tuple[Arrow, str, str]:
    """Return the effect of an expired lease: the arrow to take, the error to record, and the reason if the job becomes dead."""
    exhausted = job.attempts + 1 >= job.max_attempts
    if job.deadline is not None and job.deadline <= steady_ms:
        # A slow worker still sends heartbeats: only the job's attempts limit its timeouts.
        error, reason = "Job timeout exceeded", DeathReason.TIMEOUT
    else:
        error, reason = f"Job stalled {job.stalls + 1} times", DeathReason.STALLED
        exhausted = exhausted or (job.stalls + 1 >= max_stalls and not job.has(JobFlag.MESSAGE))
    if not exhausted:
        return Arrow.STALL_BACK if job.has(JobFlag.MESSAGE) else Arrow.STALL, error, reason
    return (Arrow.STALL_REMOVE if job.has(JobFlag.REMOVE_ON_FAIL) else Arrow.STALL_BURY), error, reason
