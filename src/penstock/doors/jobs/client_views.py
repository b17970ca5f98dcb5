"""Jobs as bunqueue's own client reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Raw

from penstock.core import limits
from penstock.core.job import DeathReason, JobFlag, details_of
from penstock.core.lifecycle import State
from penstock.doors.jobs.mapping import STATE_NAMES, fill_view
from penstock.doors.jobs.wire import client as c

if TYPE_CHECKING:
    from typing import TypeVar

    from penstock.core.job import Details, JobRecord, Payload
    from penstock.core.queue import DlqConfig

    V = TypeVar("V", bound=c.FullJobView)

#: The client's names of the reasons, and Penstock's.
REASONS: Final = {
    "explicit_fail": (DeathReason.UNRECOVERABLE, DeathReason.DISCARDED, DeathReason.CHILD_FAILED),
    "max_attempts_exceeded": (DeathReason.MAX_ATTEMPTS,),
    "timeout": (DeathReason.TIMEOUT,),
    "stalled": (DeathReason.STALLED,),
    "ttl_expired": (),
    "worker_lost": (),
    "unknown": (),
}
_REASON_OF: Final = {ours: theirs for theirs, all_of_ours in REASONS.items() for ours in all_of_ours}


def client_state(job: JobRecord) -> str:
    """Return the client's name for the state of a job: a waiting job with a priority above 0 is ``prioritized``."""
    return "prioritized" if job.state == State.WAITING and job.priority > 0 else STATE_NAMES[job.state]


def client_reason(details: Details) -> str:
    """Return the client's name for the reason why a job is dead."""
    return _REASON_OF.get(details.reason or "", "unknown")


def full_job_view(job: JobRecord, payload: Payload, queue: str, result: bytes | None) -> c.FullJobView:
    """Return the view of a job with all its fields."""
    return _completed(fill_view(c.FullJobView, job, payload, queue, **_more(job)), job, result)


def full_dead_view(job: JobRecord, payload: Payload, queue: str) -> c.FullDeadJobView:
    """Return the view of a dead job with all its fields."""
    reason = client_reason(details_of(job))
    return _completed(
        fill_view(c.FullDeadJobView, job, payload, queue, **_more(job), reason=reason, failed_at=job.finished_at), job, None
    )


def _more(job: JobRecord) -> dict[str, object]:
    return {"durable": job.has(JobFlag.DURABLE), "timeline": _timeline(job)}


def _completed(view: V, job: JobRecord, result: bytes | None) -> V:
    view.state = client_state(job)
    if job.state == State.COMPLETED:
        view.progress = 100
    if view.stack_trace_limit is None:
        view.stack_trace_limit = limits.stack_lines
    if result is not None:
        view.returnvalue = Raw(result)
    if view.error is not None:
        view.failed_reason = view.error
    return view


def _timeline(job: JobRecord) -> list[c.Step]:
    """Return the known steps of a job. The journal has every step."""
    steps = [c.Step("delayed" if job.run_at > job.created_at and job.started_at is None else "waiting", job.created_at)]
    if job.started_at is not None:
        steps.append(c.Step("active", job.started_at))
    if job.finished_at is not None:
        error = details_of(job).error
        failed = job.state == State.DEAD
        steps.append(c.Step(STATE_NAMES[job.state], job.finished_at, error, job.attempts if failed else None))
    return steps


def dead_entry(view: c.FullDeadJobView, job: JobRecord, rule: DlqConfig) -> c.DeadEntry:
    """Return the view of a dead-letter entry."""
    details = details_of(job)
    entered = job.finished_at or job.created_at
    started = job.started_at or job.created_at
    reason = client_reason(details)
    return c.DeadEntry(
        view,
        entered,
        reason,
        details.error,
        [c.AttemptView(job.attempts, started, entered, reason, details.error, max(0, entered - started))],
        details.auto_retries,
        None,
        next_retry_at(job, rule),
        None if rule.max_age is None else entered + rule.max_age,
    )


def next_retry_at(job: JobRecord, rule: DlqConfig) -> int | None:
    """Return when the dead-letter rule retries a dead job, wall clock in ms; None if it does not."""
    if not rule.auto_retry or details_of(job).auto_retries >= rule.max_auto_retries:
        return None
    return (job.finished_at or job.created_at) + rule.auto_retry_interval
