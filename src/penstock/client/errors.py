"""The errors of the SDK. Every error is a ``PenstockError``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client._durations import Duration


class PenstockError(Exception):
    """Base of the errors between this program and the server."""


class ConnectionFailed(PenstockError):
    """The server did not answer, and the time for retries is over.

    ``outcome_unknown``: the request was sent, so the server may have done it.
    """

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class UnexpectedReply(PenstockError):
    """The answer is not from Penstock. Check the address. A proxy may have sent the answer."""


class ApiError(PenstockError):
    """The server refused the request. The message is the server's.

    ``status``: the HTTP status. ``code``: the stable code of the error (header ``penstock-error``), or an empty text.
    ``repeated``: the answer to an earlier try was lost, so that try may have counted.
    """

    def __init__(self, status: int, code: str, message: str, *, repeated: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.repeated = repeated

    def __str__(self) -> str:
        return f"{self.message} ({self.status}{f' {self.code}' if self.code else ''})"

    @property
    def is_not_found(self) -> bool:
        """The job, queue, namespace or route does not exist."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """It exists already, or the request conflicts with the present state."""
        return self.status == 409

    @property
    def is_unauthorized(self) -> bool:
        """The key or token is missing, wrong, or lacks the permission."""
        return self.status in (401, 403)

    @property
    def is_rate_limited(self) -> bool:
        """There were too many requests, for longer than the time for retries."""
        return self.status == 429

    @property
    def is_temporary(self) -> bool:
        """A later retry may help and is safe: nothing was changed."""
        return self.status in (429, 503, 507)

    @property
    def outcome_unknown(self) -> bool:
        """The change may or may not have been made."""
        return self.code == "outcome_unknown" or self.status in (502, 504)


class NotFound(ApiError):
    """There is no such job, queue, namespace, cron or subscription (404)."""


class Conflict(ApiError):
    """It exists already (409)."""


class LeaseLost(ApiError):
    """The lease is lost: the job or message was settled, removed, or leased to another consumer because the lease ended."""


class JobFailed(PenstockError):
    """The job whose result was requested has failed, and will not be retried.

    ``job_id``: the job's id. ``error``: the error that its worker reported.
    """

    def __init__(self, job_id: str, error: str | None) -> None:
        super().__init__(f"Job {job_id} failed: {error or 'no reason was given'}")
        self.job_id = job_id
        self.error = error


class ResultMissing(PenstockError):
    """A job has completed, but its result was not stored: it cannot be encoded as JSON, or is too large.

    ``job_id``: the job's id. ``reason``: why.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"Job {job_id} is done. {reason}")
        self.job_id = job_id
        self.reason = reason


class JobGone(PenstockError):
    """The job whose result was requested does not exist: cancelled, expired, removed when it ended, or never pushed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job {job_id} does not exist (any more)")
        self.job_id = job_id


class ResultTimeout(PenstockError, TimeoutError):
    """The job has not ended within the timeout. It continues; wait for it again."""


class Retry(Exception):
    """Raised by a handler: this attempt failed, retry later. It counts as an attempt.

    ``after``: how long to wait, in seconds or as a timedelta; without it, the job's own backoff.
    """

    def __init__(self, message: str = "The handler requested another attempt", *, after: Duration | None = None) -> None:
        super().__init__(message)
        self.after = after


class Fail(Exception):
    """Raised by a handler: do not retry. The job becomes a dead letter, however many attempts are left."""
