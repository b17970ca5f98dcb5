"""What a job is: its head (small, rewritten at every step), its payload (large, written once), and what a producer asks for."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

DEFAULT_NAMESPACE: Final = "default"
NEVER_LEASED: Final = 0
#: An idempotency key of the batches door is kept as its job's own id, behind this. No producer may choose such an id.
IDEMPOTENCY_PREFIX: Final = "idempotency:"


class JobFlag:
    """Yes-or-no options of a job, kept in one integer. Plain integers: an IntFlag costs more than the rest of a push."""

    LIFO: Final = 1  #: enters at the front of its priority instead of the back
    REMOVE_ON_COMPLETE: Final = 2  #: is deleted by its ack instead of being kept as completed
    REMOVE_ON_FAIL: Final = 4  #: is deleted by its last failure instead of becoming dead
    DURABLE: Final = 8  #: its producer is answered after an fsync, whatever the server's durability
    AWAITED: Final = 16  #: other jobs need it: its end is looked into
    FAIL_PARENT: Final = 32  #: if it fails, so do the jobs that need it
    CONTINUE_PARENT: Final = 64  #: if it fails, the jobs that need it may run at once
    IGNORE_FAILURE: Final = 128  #: if it fails, the jobs that need it need it no more, but can see the error
    DROP_DEPENDENCY: Final = 256  #: if it fails, the jobs that need it need it no more
    REPEATS: Final = 512  #: comes again when it is done; how is said in its options, see repeat.py
    AWAITED_AFAR: Final = 1_024  #: jobs of other shards need it (then it is AWAITED, too)
    UNCOUNTED: Final = 2_048  #: a lease that runs out gives it back untouched, however often that happens
    MESSAGE: Final = (
        4_096  #: a lease that runs out is a failure like any other: it goes to the back, and only attempts count
    )
    AWAITS: Final = AWAITED | AWAITED_AFAR  #: what others have put on it, not its producer


class Payload(msgspec.Struct, frozen=True, gc=False):
    """The part of a job that is written once."""

    data: bytes  #: stored and delivered byte for byte
    options: bytes | None = None  #: rarely used options (tags, ...) as JSON, handed back untouched


class Dedup(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What else a unique key does. Durations in ms."""

    ttl: int | None = None  #: its job holds the key this long at most; None: as long as it lives
    extend: bool = False  #: a duplicate lets that time begin again
    replace: bool = False  #: a duplicate takes the place of the job that has the key, unless somebody works on that


class NewJob(Payload, frozen=True, gc=False):
    """What a producer asks for. Times are durations in milliseconds; None means "no such limit"."""

    priority: int = 0  #: higher goes first
    delay: int = 0  #: ms before it may be claimed
    max_attempts: int = 3  #: deliveries that may fail before it is dead
    backoff: int = 1_000  #: ms before the first retry, doubled for each further one
    ttl: int | None = None  #: ms after which it is dropped if nobody has claimed it
    timeout: int | None = None  #: ms a worker may take, heartbeats or not
    unique_key: str | None = None  #: one live job per queue and key
    job_id: str | None = None  #: the producer's own id: one job per namespace and id
    group_id: str | None = None  #: jobs of one group run one after the other
    flags: int = 0  #: JobFlag
    needs: tuple[int | str, ...] = ()  #: jobs that must complete first, by id or by their producer's own id
    details: bytes | None = None  #: Details with the rules it begins with, encoded; None for a job without any
    dedup: Dedup | None = None  #: for a job with a unique key
    timestamp: int | None = None  #: wall clock when its producer made it, if that was not now: delay and ttl count from it
    due_at: int | None = None  #: wall clock before which it may not be claimed, in place of a delay


class Job(msgspec.Struct, array_like=True, gc=False):
    """The head of a stored job. The order of the fields is the order of the columns and of the checksum.

    ``*_at`` and ``run_at`` are wall-clock milliseconds; ``lease_until`` and ``deadline`` are steady milliseconds.
    """

    # Who it is: never changes, unless a duplicate takes its place or its unique key is given to another.
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
    # Where it is in its life: changed by lifecycle.move alone, but for its details and flags.
    expires_at: int | None  #: when its time-to-live ends
    flags: int
    state: int
    priority: int
    position: int  #: order within its priority, smallest first; negative is in front of everything enqueued normally
    run_at: int  #: when it was or will be ready
    attempts: int = 0  #: deliveries that failed
    stalls: int = 0  #: deliveries whose lease ran out
    token: int = NEVER_LEASED  #: the latest lease; each claim has its own, so earlier holders are fenced off
    lease_ms: int = 0  #: length of the lease, renewed by a heartbeat; 0 = does not run out
    lease_until: int | None = None
    deadline: int | None = None  #: end of its timeout, which no heartbeat moves
    started_at: int | None = None
    finished_at: int | None = None
    progress: int = 0
    size: int = 0  #: bytes of payload
    details: bytes | None = None  #: Details, encoded; None for a job nothing special happened to

    def has(self, flag: int) -> bool:
        """Tell whether a yes-or-no option is set."""
        return bool(self.flags & flag)


#: The fields of Job that never change come first; everything from this index on is rewritten by a save.
FIRST_LIVE_FIELD: Final = Job.__struct_fields__.index("expires_at")


class Details(msgspec.Struct, omit_defaults=True, gc=False):
    """What is seldom needed of a job, kept together so that the head stays narrow."""

    owner: str | None = None  #: who holds or last held the lease
    error: str | None = None  #: why it failed last
    first_failed_at: int | None = None  #: wall clock when it first failed
    reason: str | None = None  #: why it is dead: see DeathReason
    progress_message: str | None = None
    parent: str | None = None  #: the job it is a child of, if that was said after its push
    dacks: int = 0  #: how often a subscriber has put it off
    auto_retries: int = 0  #: how often the dead-letter rule has brought it back
    stack: list[str] | None = None  #: where it failed last, line by line
    deferred_since: int | None = None  #: wall clock when it was first given back with a delay, since its last attempt
    unique_until: int | None = None  #: wall clock when its unique key is free for others, though it still lives
    # Rules its producer gave it. Durations in ms; None: what goes for everybody.
    backoff_type: str | None = None  #: see BackoffType
    backoff_max: int | None = None  #: longest wait before a retry
    stall_timeout: int | None = None  #: silence for longer than this loses it
    stack_limit: int | None = None  #: lines of a stack that are kept
    keep_logs: int | None = None  #: lines of its log that are kept
    size_limit: int | None = None  #: bytes its payload may have


class BackoffType:
    """How the wait before a retry grows."""

    FIXED = "fixed"
    EXPONENTIAL = "exponential"


#: The fields of Details that a job passes on to the one that comes after it.
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


def details_of(job: Job) -> Details:
    """Return a fresh copy of a job's details; ``put_details`` writes it back."""
    return Details() if job.details is None else _decode_details(job.details)


def put_details(job: Job, details: Details) -> None:
    """Replace a job's details."""
    job.details = encode_details(details)


def rules_of(job: Job) -> bytes | None:
    """Return details with nothing but the rules its producer gave a job; None if there are none."""
    if job.details is None:
        return None
    details, nothing = details_of(job), Details()
    rules = Details(**{name: getattr(details, name) for name in _RULES})
    return None if rules == nothing else encode_details(rules)


def unique_key_is_over(job: Job, now_ms: int) -> bool:
    """Tell whether the time is over for which a job may hold its unique key."""
    if job.details is None:
        return False
    until = details_of(job).unique_until
    return until is not None and until <= now_ms


class Delivery(NamedTuple):
    """A job with its payload, on its way to somebody."""

    job: Job
    payload: Payload
