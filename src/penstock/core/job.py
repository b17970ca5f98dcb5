"""The parts of a job.

Its head (small, rewritten at every transition), its payload (large, written once), and the producer's request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

DEFAULT_NAMESPACE: Final = "default"
NEVER_LEASED: Final = 0
#: The prefix of the custom id that stores an idempotency key of the batches door. No producer may choose such an id.
IDEMPOTENCY_PREFIX: Final = "idempotency:"


class JobFlag:
    """Boolean options of a job, stored in one integer. Plain integers: an IntFlag costs more than the rest of a push."""

    LIFO: Final = 1  #: enters at the front of its priority, not at the back
    REMOVE_ON_COMPLETE: Final = 2  #: deleted by its ack, not kept as completed
    REMOVE_ON_FAIL: Final = 4  #: deleted by its last failure, not kept as dead
    DURABLE: Final = 8  #: its producer is answered after an fsync, with any durability of the server
    AWAITED: Final = 16  #: other jobs need it: its end is handled
    FAIL_PARENT: Final = 32  #: if it fails, so do the jobs that need it
    CONTINUE_PARENT: Final = 64  #: if it fails, the jobs that need it may run at once
    IGNORE_FAILURE: Final = 128  #: if it fails, the jobs that need it no longer need it, but can read the error
    DROP_DEPENDENCY: Final = 256  #: if it fails, the jobs that need it no longer need it
    REPEATS: Final = 512  #: pushed again after it is completed; its options contain the rule, see repeat.py
    AWAITED_REMOTELY: Final = 1_024  #: jobs of other shards need it (then it is AWAITED, too)
    UNCOUNTED: Final = 2_048  #: the end of a lease without an ack returns it unchanged, without a limit
    MESSAGE: Final = (
        4_096  #: the end of a lease without an ack is a normal failure: it goes to the back, and only attempts count
    )
    AWAITS: Final = AWAITED | AWAITED_REMOTELY  #: set by other jobs, not by its producer


class Payload(msgspec.Struct, frozen=True, gc=False):
    """The part of a job that is written once."""

    data: bytes  #: stored and delivered byte for byte
    options: bytes | None = None  #: rarely used options (tags, ...) as JSON, returned unchanged


class Dedup(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Further rules of a unique key. Durations in ms."""

    ttl: int | None = None  #: the job holds the key at most this long; None: while it is unfinished
    extend: bool = False  #: a duplicate restarts that time
    replace: bool = False  #: a duplicate replaces the job that has the key, unless that job is active


class JobSpec(Payload, frozen=True, gc=False):
    """The job that a producer requests. Times are durations in milliseconds; None: no limit."""

    priority: int = 0  #: a higher number comes first
    delay: int = 0  #: ms before it may be claimed
    max_attempts: int = 3  #: deliveries that may fail before it is dead
    backoff: int = 1_000  #: ms before the first retry, doubled for each further one
    ttl: int | None = None  #: ms after which it is removed if it was not claimed
    timeout: int | None = None  #: ms that a worker may work on it, even with heartbeats
    unique_key: str | None = None  #: one unfinished job per queue and key
    job_id: str | None = None  #: the producer's own id: one job per namespace and id
    group_id: str | None = None  #: jobs of one group run one after the other
    flags: int = 0  #: JobFlag
    needs: tuple[int | str, ...] = ()  #: jobs that must complete first, by id or by their producer's own id
    details: bytes | None = None  #: Details with the rules of the producer, encoded; None for a job without rules
    dedup: Dedup | None = None  #: for a job with a unique key
    timestamp: int | None = None  #: wall clock when its producer created it, if not now: delay and ttl count from it
    due_at: int | None = None  #: wall clock before which it may not be claimed; replaces the delay


class JobRecord(msgspec.Struct, array_like=True, gc=False):
    """The head of a stored job. The order of the fields is the order of the columns and of the checksum.

    ``*_at`` and ``run_at`` are wall-clock milliseconds; ``lease_until`` and ``deadline`` are steady milliseconds.
    """

    # Identity: never changes, unless a duplicate replaces the job or its unique key is given to another.
    id: int
    namespace: int  #: the store's number of the namespace
    queue: int  #: the store's number of the queue
    created_at: int
    max_attempts: int
    backoff: int
    timeout: int | None
    group_id: str | None
    unique_key: str | None
    custom_id: str | None
    # State and position: changed only by lifecycle.move, except its details and flags.
    expires_at: int | None  #: when its time-to-live ends
    flags: int
    state: int
    priority: int
    position: int  #: order within its priority, smallest first; a negative one is before all normally pushed jobs
    run_at: int  #: when it became or becomes ready
    attempts: int = 0  #: deliveries that failed
    stalls: int = 0  #: deliveries whose lease ended without an ack
    token: int = NEVER_LEASED  #: the latest lease; each claim has its own token, so tokens of earlier claims are rejected
    lease_ms: int = 0  #: length of the lease, renewed by a heartbeat; 0 = the lease does not end
    lease_until: int | None = None
    deadline: int | None = None  #: end of its timeout, which no heartbeat moves
    started_at: int | None = None
    finished_at: int | None = None
    progress: int = 0
    size: int = 0  #: bytes of payload
    details: bytes | None = None  #: Details, encoded; None for a job without any

    def has(self, flag: int) -> bool:
        """Return whether an option is set."""
        return bool(self.flags & flag)


#: The fields of JobRecord that never change come first; a save rewrites the fields from this index on.
FIRST_LIVE_FIELD: Final = JobRecord.__struct_fields__.index("expires_at")


class Details(msgspec.Struct, omit_defaults=True, gc=False):
    """Rarely used fields of a job, stored together so that the head stays narrow."""

    owner: str | None = None  #: who has or last had the lease
    error: str | None = None  #: error of the last failure
    first_failed_at: int | None = None  #: wall clock when it first failed
    reason: str | None = None  #: why it became dead: see DeathReason
    progress_message: str | None = None
    parent: str | None = None  #: the parent of this job, if it was set after the push
    dacks: int = 0  #: number of times that a subscriber has postponed it
    auto_retries: int = 0  #: number of retries by the dead-letter rule
    stack: list[str] | None = None  #: stack of the last failure, by lines
    deferred_since: int | None = None  #: wall clock when it was first released with a delay, since its last attempt
    unique_until: int | None = None  #: wall clock when other jobs may use its unique key, although it is unfinished
    # Rules of its producer. Durations in ms; None: the default rule.
    backoff_type: str | None = None  #: see BackoffType
    backoff_max: int | None = None  #: longest wait before a retry
    stall_timeout: int | None = None  #: without a heartbeat for longer than this, the lease ends
    stack_limit: int | None = None  #: maximum number of lines kept of a stack
    keep_logs: int | None = None  #: maximum number of lines kept of its log
    size_limit: int | None = None  #: maximum size of its payload, in bytes


class BackoffType:
    """How the backoff grows."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


#: The fields of Details that a job passes on to its successor.
_RULES: Final = ("backoff_type", "backoff_max", "stall_timeout", "stack_limit", "keep_logs", "size_limit")


class DeathReason:
    """Why a job is dead, in the words of the dead-letter listing."""

    MAX_ATTEMPTS = "max_attempts_exceeded"
    STALLED = "stalled"
    TIMEOUT = "timeout"
    DISCARDED = "discarded"
    CHILD_FAILED = "child_failed"
    UNRECOVERABLE = "explicit_fail"


encode_details = msgspec.msgpack.Encoder().encode
_decode_details = msgspec.msgpack.Decoder(Details).decode


def details_of(job: JobRecord) -> Details:
    """Return a fresh copy of a job's details; ``put_details`` writes it back."""
    return Details() if job.details is None else _decode_details(job.details)


def put_details(job: JobRecord, details: Details) -> None:
    """Replace a job's details."""
    job.details = encode_details(details)


def producer_rules(job: JobRecord) -> bytes | None:
    """Return details with only the rules of the job's producer; None if it has no rules."""
    if job.details is None:
        return None
    details, nothing = details_of(job), Details()
    rules = Details(**{name: getattr(details, name) for name in _RULES})
    return None if rules == nothing else encode_details(rules)


def unique_key_is_over(job: JobRecord, now_ms: int) -> bool:
    """Return whether the time has passed for which a job may hold its unique key."""
    if job.details is None:
        return False
    until = details_of(job).unique_until
    return until is not None and until <= now_ms


class Delivery(NamedTuple):
    """A job with its payload, as it is delivered."""

    job: JobRecord
    payload: Payload
