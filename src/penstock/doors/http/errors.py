"""Errors over HTTP: one table from error class to status, and one shape of the body."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.core import errors

#: The status of each error class. For a class that is not listed, the first listed class in its MRO counts.
STATUS: Final[dict[type[errors.ServerError], int]] = {
    errors.InvalidInput: 400,
    errors.WrongState: 400,
    errors.NothingToAwait: 400,
    errors.StaleLease: 400,
    errors.Unauthorized: 401,
    errors.OriginRefused: 403,
    errors.HostRefused: 403,
    errors.Forbidden: 403,
    errors.JobNotFound: 404,
    errors.CronNotFound: 404,
    errors.JobQuarantined: 404,
    errors.WorkerNotFound: 404,
    errors.RouteNotFound: 404,
    errors.KeyNotFound: 404,
    errors.WebhookNotFound: 404,
    errors.SubscriptionNotFound: 404,
    errors.QueueNotFound: 404,
    errors.StageUnknown: 404,
    errors.CommitUnknown: 404,
    errors.EpochUnknown: 404,
    errors.NamespaceNotFound: 404,
    errors.SnapshotNotFound: 404,
    errors.LakeUnset: 404,
    errors.LakeNotFound: 404,
    errors.MethodRefused: 405,
    errors.BodyTooSlow: 408,
    errors.RebalanceRefused: 409,
    errors.AlreadyExists: 409,
    errors.HistoryReplaced: 409,
    errors.EpochOver: 409,
    errors.EpochLeasesLost: 409,
    errors.ReceiptUnknown: 410,
    errors.JournalGone: 410,
    errors.BodyTooLarge: 413,
    errors.TargetTooLong: 414,
    errors.RateLimited: 429,
    errors.NamespaceLimit: 429,
    errors.TooMany: 503,
    errors.NameContested: 503,
    errors.KeysUnavailable: 503,
    errors.StorageFailed: 503,
    errors.QueueMoving: 503,
    errors.StoreIncompatible: 503,
    errors.BackupInvalid: 503,
    errors.RestoreUnfinished: 503,
    errors.ShuttingDown: 503,
    errors.BulkFailed: 503,
    errors.StorageFull: 507,
    errors.SpoolFull: 507,
    errors.BulkMemory: 507,
    errors.OutcomeUnknown: 500,
    errors.PartlyDone: 500,
    errors.LakeUnusable: 500,
    errors.BulkUnavailable: 501,
    errors.LakeUnavailable: 501,
    errors.ServerError: 500,
}
#: Has the stable code of an error, because the body is fixed by the contract and has no field for it.
CODE_HEADER: Final = "penstock-error"


class ErrorReply(msgspec.Struct):
    """An error, with its text."""

    ok: bool
    error: str


class JournalGoneReply(msgspec.Struct):
    """The requested events are no longer kept, and where to continue."""

    ok: bool
    error: str
    journal_first: int  #: number of the oldest event that is kept


class LeasesLostReply(msgspec.Struct):
    """Some jobs of an epoch no longer belong to the group: how many, and which."""

    ok: bool
    error: str
    epoch: int
    lost: int


class Refused(errors.InvalidInput):
    """The request is valid but refused, with the text of the door's contract."""

    code = "refused"


def status_of(error: errors.ServerError) -> int:
    """Return the HTTP status of an error."""
    return next(STATUS[family] for family in type(error).__mro__ if family in STATUS)


def headers_of(error: errors.ServerError) -> list[tuple[str, str]]:
    """Return the headers of an error's response."""
    headers = [(CODE_HEADER, error.code)]
    if isinstance(error, errors.RateLimited):
        headers.append(("retry-after", str(-(-error.retry_after_ms // 1000))))
    elif isinstance(error, errors.Unauthorized):
        headers.append(("www-authenticate", "Bearer"))
    elif isinstance(error, errors.MethodRefused):
        headers.append(("allow", error.allow))
    elif status_of(error) in (429, 503):
        headers.append(("retry-after", "1"))
    return headers


def body_of(error: errors.ServerError) -> bytes:
    """Return the body of an error's response."""
    if isinstance(error, errors.JournalGone):
        return msgspec.json.encode(JournalGoneReply(ok=False, error=str(error), journal_first=error.first))
    if isinstance(error, errors.EpochLeasesLost):
        return msgspec.json.encode(LeasesLostReply(ok=False, error=str(error), epoch=error.epoch, lost=error.lost))
    return msgspec.json.encode(ErrorReply(ok=False, error=str(error)))
