"""Errors over HTTP: one table from class to status, one shape of body."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core import errors

#: The first class of an error's family tree that is listed here decides.
STATUS: Final[dict[type[errors.PenstockError], int]] = {
    errors.InvalidInput: 400,
    errors.WrongState: 400,
    errors.StaleLease: 400,
    errors.Unauthorized: 401,
    errors.OriginRefused: 403,
    errors.Forbidden: 403,
    errors.JobNotFound: 404,
    errors.CronNotFound: 404,
    errors.JobQuarantined: 404,
    errors.WorkerNotFound: 404,
    errors.RouteNotFound: 404,
    errors.WebhookNotFound: 404,
    errors.HeadRefused: 405,
    errors.RebalanceRefused: 409,
    errors.LengthRequired: 411,
    errors.BodyTooLarge: 413,
    errors.RateLimited: 429,
    errors.TooMany: 503,
    errors.NameContested: 503,
    errors.KeysUnavailable: 503,
    errors.StorageFailed: 503,
    errors.QueueMoving: 503,
    errors.StoreIncompatible: 503,
    errors.ShuttingDown: 503,
    errors.StorageFull: 507,
    errors.OutcomeUnknown: 500,
    errors.PartlyDone: 500,
    errors.PenstockError: 500,
}
#: Carries the stable code of an error, because the body is the contract's and has no room for it.
CODE_HEADER: Final = "penstock-error"


class ErrorReply(msgspec.Struct):
    """What went wrong, in words."""

    ok: bool
    error: str


class Refused(errors.InvalidInput):
    """The request was understood and refused, in the words of the door's contract."""

    code = "refused"


def status_of(error: errors.PenstockError) -> int:
    """Return the status an error is answered with."""
    return next(STATUS[family] for family in type(error).__mro__ if family in STATUS)


def headers_of(error: errors.PenstockError) -> list[tuple[str, str]]:
    """Return the headers an error is answered with."""
    headers = [(CODE_HEADER, error.code)]
    if isinstance(error, errors.RateLimited):
        headers.append(("retry-after", str(-(-error.retry_after_ms // 1000))))
    elif isinstance(error, errors.Unauthorized):
        headers.append(("www-authenticate", "Bearer"))
    elif isinstance(error, errors.HeadRefused):
        headers.append(("allow", "GET"))
    elif status_of(error) == 503:
        headers.append(("retry-after", "1"))
    return headers


def body_of(error: errors.PenstockError) -> bytes:
    """Return the body an error is answered with."""
    return msgspec.json.encode(ErrorReply(ok=False, error=str(error)))
