"""Queues: a name in a namespace, and the settings of the queue."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.core import limits
from penstock.core.group_limits import GroupDefaults

if TYPE_CHECKING:
    from penstock.core.lifecycle import State


class QueueKey(NamedTuple):
    """The name of a queue, as clients use it."""

    namespace: str
    name: str


class StallConfig(msgspec.Struct, frozen=True, rename="camel"):
    """When a lease without heartbeats ends. Durations in ms."""

    enabled: bool = True
    stall_interval: int = 30_000  #: length of a lease: without a heartbeat for longer than this, it ends
    max_stalls: int = 3  #: a job that stalled this often is dead
    grace_period: int = 5_000  #: the first lease is never shorter than this


class DlqConfig(msgspec.Struct, frozen=True, rename="camel"):
    """How dead jobs are retried and deleted. Durations in ms."""

    auto_retry: bool = False
    auto_retry_interval: int = limits.HOUR_MS  #: a dead job waits this long before it is retried
    max_auto_retries: int = 3
    max_age: int | None = 7 * limits.DAY_MS  #: older dead jobs are deleted; None = kept
    max_entries: int = 10_000  #: above this number of dead jobs, the oldest are deleted


class MessageRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rules for the messages of one queue of the messages door. 0: the server's default. Durations in ms."""

    visibility_timeout_ms: int = 0
    max_messages: int = 0  #: waiting and active messages together
    max_retries: int = 0  #: total number of deliveries
    max_batch_size: int = 0


class PushSubscription(msgspec.Struct, frozen=True):
    """A webhook to which the messages of one queue are pushed."""

    id: int
    url: str
    secret: str  #: the key that signs deliveries; empty: they are not signed
    created_at: int  #: wall clock, ms

    def __repr__(self) -> str:
        return f"Subscription(id={self.id})"  # neither its secret nor its URL may appear in a log


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """All settings of a queue."""

    paused: bool = False
    rate_limit: int | None = None  #: jobs per ``rate_window_ms`` that may be claimed
    concurrency: int | None = None  #: jobs that may be active at once
    stall: StallConfig = StallConfig()
    dlq: DlqConfig = DlqConfig()
    messages: MessageRules | None = None  #: set if it was created at the messages door
    known_since: int | None = None  #: of the nameless queue of a namespace: when the namespace was created
    subscriptions: tuple[PushSubscription, ...] = ()  #: webhooks to which its messages are pushed
    buffered: bool = False  #: pushes are answered once they are in the server's own log, if it has one
    rate_window_ms: int = limits.SECOND_MS  #: see rate_limit
    rate_limit_until: int | None = None  #: wall clock, ms: when the rate limit ends; None: it does not
    limits_groups: bool = False  #: some of its groups are paused or limited, see core/group_limits.py
    group_defaults: GroupDefaults | None = None  #: for groups without own limits; ``limits_groups`` is then set, too


#: The settings of a queue without settings.
SETTINGS_DEFAULT: Final = QueueSettings()


def empties_bucket(before: QueueSettings, after: QueueSettings) -> bool:
    """Return whether the state of a rate limit is dropped: the limit was removed, ends, or has another window."""
    if before.rate_limit is None:
        return False
    return (
        after.rate_limit is None
        or after.rate_window_ms != before.rate_window_ms
        or after.rate_limit_until != before.rate_limit_until
    )


class MoveStep(IntEnum):
    """Whether a shard has a queue. Numbers are stored. At most one shard has HERE or LEAVING for a queue."""

    HERE = 0  #: it is served here
    LEAVING = 1  #: it is here and can be read, but does not change until it has moved, or the move is cancelled
    MOVED = 2  #: it is on another shard; the rest of its rows here are being deleted
    ARRIVING = 3  #: it is being copied here, and is not served here yet
    CLEARING = 4  #: the rows of an earlier attempt to copy it here are being deleted
    GONE = 5  #: it is on another shard; of its rows here, only the record of its new shard is left

    @property
    def is_seen(self) -> bool:
        """Whether the rows that a shard has of the queue are the valid ones."""
        return self <= MoveStep.LEAVING

    @property
    def has_left(self) -> bool:
        """Whether the queue is on the other shard of its move."""
        return self in (MoveStep.MOVED, MoveStep.GONE)


class Move(NamedTuple):
    """The state of a queue's move from one shard to another."""

    step: MoveStep = MoveStep.HERE
    peer: int = 0  #: the shard at the other end
    attempt: int = 0  #: differs between attempts to move it, so that a cancelled attempt is not continued


SETTLED: Final = Move()


class Queue(msgspec.Struct):
    """A stored queue. ``settings`` is replaced as a whole, never changed in place."""

    number: int
    namespace_number: int
    key: QueueKey
    created_at: int | None  #: when its first job was pushed; None = it has only settings so far
    settings: QueueSettings
    move: Move = SETTLED


class StateCounts(msgspec.Struct):
    """How many jobs of a queue are in each state."""

    waiting: int = 0
    delayed: int = 0
    active: int = 0
    completed: int = 0
    dead: int = 0
    waiting_children: int = 0

    def of(self, state: State) -> int:
        """Return the count of one state."""
        return (self.waiting, self.delayed, self.active, self.completed, self.dead, self.waiting_children)[state]
