"""One tree of errors. The docstring of a class is its default message, written for the person who will read it.

Errors that only one module raises are in that module, with ``ServerError`` or another class from here as their base.

``code`` is stable and safe to match on; the text may get better. Doors map classes to their own status codes in one
table each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class ServerError(Exception):
    """An internal error occurred. The server's log has the details."""

    code = "internal"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((type(self).__doc__ or "").split()))


# Errors that the caller can correct.


class InvalidInput(ServerError):
    """The request is not valid."""

    code = "invalid_input"


class OwnAncestor(InvalidInput):
    """A job cannot be its own ancestor"""  # noqa: D400 - the contract's own text

    code = "own_ancestor"


class PayloadTooLarge(InvalidInput):
    """Job data too large (max 10MB)."""

    code = "payload_too_large"


class BodyTooLarge(ServerError):
    """Request body too large (max 10MB). Send it in smaller parts."""

    code = "body_too_large"


class BodyTooSlow(ServerError):
    """The request body did not arrive in time. Send it again, without pauses."""

    code = "body_too_slow"


class TargetTooLong(ServerError):
    """The path or the query string is too long. Use shorter names, or send long values in the body."""

    code = "target_too_long"


class FrameTooLarge(InvalidInput):
    """The frame is larger than the protocol allows. Send it in smaller parts."""

    code = "frame_too_large"


class ProtocolError(InvalidInput):
    """The received data does not follow the protocol of this port. The data after it cannot be read."""

    code = "protocol_error"

    def __init__(self, message: str | None = None, *, silent: bool = False) -> None:
        super().__init__(message)
        self.silent = silent  #: no error is sent to the client, because it uses another protocol


class Unauthorized(ServerError):
    """Unauthorized"""  # noqa: D400 - the contract's own text

    code = "unauthorized"


class OriginRefused(ServerError):
    """Web pages of this origin may not call this server. Allow it with CORS_ALLOW_ORIGIN."""

    code = "origin_refused"


class HostRefused(ServerError):
    """This is not a known host name of this server. Add it to allowed_hosts."""

    code = "host_refused"


class Forbidden(ServerError):
    """This token has no permission for this. Use a token that has it."""

    code = "forbidden"


class RateLimited(ServerError):
    """Rate limit exceeded"""  # noqa: D400 - the contract's own text

    code = "rate_limited"

    def __init__(self, message: str | None = None, *, retry_after_ms: int = 1_000) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class QuotaExceeded(RateLimited):
    """The namespace exceeded its quota of enqueues per minute. Retry later."""

    code = "quota_exceeded"


class JobNotFound(ServerError):
    """Job not found"""  # noqa: D400 - the contract's own text

    code = "job_not_found"


class CronNotFound(ServerError):
    """Cron job not found"""  # noqa: D400 - the contract's own text

    code = "cron_not_found"


class WebhookNotFound(ServerError):
    """Webhook not found"""  # noqa: D400 - the contract's own text

    code = "webhook_not_found"


class SubscriptionNotFound(ServerError):
    """There is no such subscription."""

    code = "subscription_not_found"


class WorkerNotFound(ServerError):
    """Worker not found"""  # noqa: D400 - the contract's own text

    code = "worker_not_found"


class KeyNotFound(ServerError):
    """There is no such API key. List them with: penstock keys list."""

    code = "key_not_found"


class SnapshotNotFound(ServerError):
    """There is no such snapshot, or it has expired, or another server made it. Take a new one with POST /bulk/snapshots."""

    code = "snapshot_not_found"


class JournalGone(ServerError):
    """The requested events are no longer in the journal."""

    code = "journal_gone"

    def __init__(self, message: str | None = None, *, first: int = 0) -> None:
        super().__init__(message)
        self.first = first  #: number of the oldest event that is kept


class HistoryReplaced(ServerError):
    """The journal is not the one that was read before: it is of another server, or its store was emptied or restored."""

    code = "history_replaced"


class LakeUnset(ServerError):
    """This server has no lake. Build one with: penstock pipeline run --lake DIR. Then set lake (PENSTOCK_LAKE) to it."""

    code = "lake_unset"


class LakeNotFound(ServerError):
    """There is no lake at the path in the setting lake (PENSTOCK_LAKE). Build it with: penstock pipeline run --lake DIR."""

    code = "lake_not_found"


class RouteNotFound(ServerError):
    """Not found"""  # noqa: D400 - the contract's own text

    code = "not_found"


class MethodRefused(ServerError):
    """Method not allowed"""  # noqa: D400 - the contract's own text

    code = "method_not_allowed"

    def __init__(self, message: str | None = None, *, allow: str = "GET") -> None:
        super().__init__(message)
        self.allow = allow  #: the allowed methods, with commas between them


class HeadRefused(MethodRefused):
    """HEAD would take jobs and leave them out of the answer. Use GET."""


class WrongState(ServerError):
    """The job is not in a state from which this can be done."""

    code = "wrong_state"

    def __init__(self, state: str, message: str | None = None) -> None:
        super().__init__(message)
        self.state = state


class NothingToAwait(ServerError):
    """The job has nothing to wait for: its dependencies have ended. You still have its lease; continue with it."""

    code = "nothing_to_await"


class StaleLease(ServerError):
    """The lease token is not the latest one of this job: another worker may have it. Drop the result."""

    code = "stale_lease"


class JobQuarantined(ServerError):
    """Job is quarantined: its stored row failed its checksum, so it will not be delivered."""

    code = "job_quarantined"


class QueueFull(RateLimited):
    """The queue has its maximum number of messages. Consume some, or publish later."""

    code = "queue_full"

    def __init__(self, key: tuple[str, str], room: int) -> None:
        super().__init__(f"queue {key[0]}/{key[1]}: at capacity ({room} messages)")


class ReceiptUnknown(ServerError):
    """The receipt handle is unknown, was used already, or its visibility timeout is over. Consume the message again."""

    code = "receipt_unknown"


class QueueNotFound(ServerError):
    """There is no such queue."""

    code = "queue_not_found"


class NamespaceNotFound(ServerError):
    """There is no such namespace."""

    code = "namespace_not_found"


class AlreadyExists(ServerError):
    """This name exists already."""

    code = "already_exists"


class StageUnknown(ServerError):
    """There is no staged write with this name."""

    code = "stage_unknown"


class CommitUnknown(ServerError):
    """There is no commit with this key."""

    code = "commit_unknown"


class EpochUnknown(ServerError):
    """The group has not claimed that epoch."""

    code = "epoch_unknown"


class EpochOver(ServerError):
    """The group has acknowledged that epoch already."""

    code = "epoch_over"


class EpochLeasesLost(ServerError):
    """Some jobs of the epoch are no longer the group's."""

    code = "leases_lost"

    def __init__(self, epoch: int, lost: int, gone: int = 0) -> None:
        self.epoch = epoch
        self.lost = lost
        why = ["their leases ran out"] if lost > gone else []
        if gone:
            why.append(f"{gone} were removed, or are damaged and in quarantine")
        super().__init__(
            f"{lost} jobs of epoch {epoch} are no longer the group's: {'; '.join(why)}. Release the group and claim again, "
            "with a longer lease or more frequent heartbeats."
        )


class TooMany(ServerError):
    """A limit of the server is reached."""

    code = "too_many"


class NamespaceLimit(TooMany):
    """The namespace has used its share of a resource of the server. Free some of it, or raise the setting namespace_share."""

    code = "namespace_limit"


class NameContested(ServerError):
    """Other requests use the same jobId on another shard at the same time. Nothing was stored. Retry in a moment."""

    code = "name_contested"

    def __init__(self, message: str | None = None, *, withdrawn: frozenset[int] = frozenset()) -> None:
        super().__init__(message)
        self.withdrawn = withdrawn  #: tickets that are no longer used, see core.reservations


class PartlyDone(ServerError):
    """The operation was interrupted between its steps. Completed steps are kept; repeat it for the rest."""

    code = "partly_done"


class PartlyPushed(PartlyDone):
    """A shard was lost during a push to several shards. Push again the jobs that are not stored."""

    def __init__(self, message: str, stored: Sequence[Sequence[int | None]]) -> None:
        super().__init__(message)
        self.stored = stored  #: ids of the jobs of each part, in order; None: not stored, or not known to be


# Errors that the operator can correct.


class RowChanged(ServerError):
    """A stored job has changed since it was read. Nothing was stored; a retry may help."""

    code = "row_changed"


class StorageFull(ServerError):
    """Disk is full: new jobs are refused until space is freed; acknowledgements still work. Nothing was stored."""

    code = "storage_full"

    def __init__(self, message: str | None = None, *, room_made: bool = False) -> None:
        super().__init__(message)
        self.room_made = room_made  #: some of the reserve was released: small writes may be tried again


class StorageFailed(ServerError):
    """Storage failed: the server does not take writes until its disk works again. Nothing was stored."""

    code = "storage_failed"


class OutcomeUnknown(ServerError):
    """The disk failed while the change was being made durable: it may or may not have happened."""

    code = "outcome_unknown"

    def with_advice(self, advice: str) -> OutcomeUnknown:
        """Return the same error with the given advice, which depends on the request."""
        return OutcomeUnknown(f"{self} {advice}")


class FastPathFailed(ServerError):
    """Redis does not answer, or has lost data. Nothing is missing: the database has all of it."""

    code = "fast_path_failed"


class FastPathFull(FastPathFailed):
    """Redis is out of memory. It has stored nothing of this command, and keeps what it has."""

    code = "fast_path_full"


class SpoolFull(ServerError):
    """The result does not fit into the spool. Request less at once, or raise PENSTOCK_BULK_SPOOL_BYTES."""

    code = "spool_full"


class BulkMemory(ServerError):
    """This needs more memory than a bulk process may use. Send or request less at once, or raise PENSTOCK_BULK_MEMORY_BYTES."""

    code = "bulk_memory"


class BulkFailed(ServerError):
    """The bulk process ended during the read; the log may have the reason. Retry in a moment."""

    code = "bulk_failed"


class BulkUnavailable(ServerError):
    """Bulk reads need Arrow, which this server lacks. Install it with: pip install 'penstock-queue[bulk]'."""

    code = "bulk_unavailable"


class LakeUnavailable(ServerError):
    """Insights need Delta tables, which this server cannot read. Install the extra: pip install 'penstock-queue[lake]'."""

    code = "lake_unavailable"


class LakeUnusable(ServerError):
    """A part of the lake cannot be used."""

    code = "lake_invalid"


class QueueMoving(ServerError):
    """This queue is being moved to another shard. Retry in a moment."""

    code = "queue_moving"


class RebalanceRefused(ServerError):
    """The shards cannot be rebalanced now."""

    code = "rebalance_refused"


class KeysUnavailable(ServerError):
    """The keys for JSON Web Tokens cannot be fetched now. The server's log has the reason. Retry in a moment."""

    code = "keys_unavailable"


class ShuttingDown(ServerError):
    """The server is shutting down. Retry in a moment."""

    code = "shutting_down"


class StoreLocked(ServerError):
    """Another process uses this data directory. Stop it first, or choose another directory with --data."""

    code = "store_locked"


class BackupInvalid(ServerError):
    """The backup is damaged, incomplete, or not a backup."""

    code = "backup_invalid"


class RestoreUnfinished(ServerError):
    """A restore was interrupted. Complete it with: penstock restore --continue."""

    code = "restore_unfinished"


class StoreIncompatible(ServerError):
    """The data directory was written by a newer version of Penstock. Upgrade Penstock; nothing was changed."""

    code = "store_incompatible"


class ConfigInvalid(ServerError):
    """The configuration is not valid."""

    code = "config_invalid"
