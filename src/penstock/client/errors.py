"""What can go wrong: one small tree. Every error of the SDK is a ``PenstockError``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client._durations import Duration


class PenstockError(Exception):
    """Something went wrong between this program and the server."""


class ConnectionFailed(PenstockError):
    """The server did not answer, for as long as was tried.

    ``outcome_unknown``: the request had been sent, so what it asks for may have happened.
    """

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class UnexpectedReply(PenstockError):
    """The answer is not one of Penstock's. Check the address; a proxy in between may answer in its place."""


class ApiError(PenstockError):
    """The server refused. The message is the server's own.

    ``status``: the HTTP status. ``code``: the stable code of the error (header ``penstock-error``), or an empty text.
    ``repeated``: an earlier try was lost on the way, so it may be that one which counted.
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
        """There is no such thing: a job, a queue, a namespace, a route."""
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        """It exists already, or something else stands in the way."""
        return self.status == 409

    @property
    def is_unauthorized(self) -> bool:
        """No key or token was shown, or a wrong one, or one that may not do this."""
        return self.status in (401, 403)

    @property
    def is_rate_limited(self) -> bool:
        """Too many requests, for longer than was tried."""
        return self.status == 429

    @property
    def is_temporary(self) -> bool:
        """Trying again later may help, and does no harm: nothing has happened."""
        return self.status in (429, 503, 507)

    @property
    def outcome_unknown(self) -> bool:
        """It may or may not have happened."""
        return self.code == "outcome_unknown" or self.status in (502, 504)


class NotFound(ApiError):
    """There is no such job, queue, namespace, cron or subscription (404)."""


class Conflict(ApiError):
    """It exists already (409)."""


class LeaseLost(ApiError):
    """The job or message is not yours any more: settled, removed, or given to somebody else because its lease ended."""


class JobFailed(PenstockError):
    """A job whose result was asked for has failed for good.

    ``job_id``: which. ``error``: what its worker said.
    """

    def __init__(self, job_id: str, error: str | None) -> None:
        super().__init__(f"Job {job_id} failed: {error or 'no reason was given'}")
        self.job_id = job_id
        self.error = error


class ResultMissing(PenstockError):
    """A job is done, but what it returned was not kept: it cannot be encoded as JSON, or is too large.

    ``job_id``: which. ``reason``: why.
    """

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"Job {job_id} is done. {reason}")
        self.job_id = job_id
        self.reason = reason


class JobGone(PenstockError):
    """A job whose result was asked for does not exist: cancelled, expired, removed when it ended, or never pushed."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"Job {job_id} does not exist (any more)")
        self.job_id = job_id


class ResultTimeout(PenstockError, TimeoutError):
    """The job has not ended within the time given. It goes on; ask again."""


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again later. It counts as an attempt.

    ``after``: how long to wait, in seconds or as a timedelta; without it, the job's own backoff.
    """

    def __init__(self, message: str = "The handler asks for another attempt", *, after: Duration | None = None) -> None:
        super().__init__(message)
        self.after = after


class Fail(Exception):
    """Raised by a handler: trying again is no use. The job goes to the dead letters, whatever attempts are left."""
