"""What a queue is: a name in a namespace, and the settings people give it."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock.core import limits
from penstock.core.group_limits import GroupDefaults

if TYPE_CHECKING:
    from penstock.core.lifecycle import State


class QueueKey(NamedTuple):
    """How a queue is called from outside."""

    namespace: str
    name: str


class StallConfig(msgspec.Struct, frozen=True, rename="camel"):
    """When a silent worker has lost its job. Durations in ms."""

    enabled: bool = True
    stall_interval: int = 30_000  #: length of a lease: silence for longer than this loses the job
    max_stalls: int = 3  #: a job that stalled this often is dead
    grace_period: int = 5_000  #: the first lease is never shorter than this


class DlqConfig(msgspec.Struct, frozen=True, rename="camel"):
    """What becomes of dead jobs. Durations in ms."""

    auto_retry: bool = False
    auto_retry_interval: int = limits.HOUR_MS  #: a dead job rests this long before it is tried again
    max_auto_retries: int = 3
    max_age: int | None = 7 * limits.DAY_MS  #: older dead jobs are deleted; None = kept
    max_entries: int = 10_000  #: more dead jobs than this: the oldest are deleted


class MessageRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes for the messages of one queue of the messages door. 0: what goes for everybody. Durations in ms."""

    visibility_timeout_ms: int = 0
    max_messages: int = 0  #: waiting and in flight together
    max_retries: int = 0  #: deliveries in all
    max_batch_size: int = 0


class PushSubscription(msgspec.Struct, frozen=True):
    """A webhook that the messages of one queue are pushed to."""

    id: int
    url: str
    secret: str  #: what deliveries are signed with; empty: nothing
    created_at: int  #: wall clock, ms

    def __repr__(self) -> str:
        return f"Subscription(id={self.id})"  # neither its secret nor its URL belongs into a log


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that can be set on a queue."""

    paused: bool = False
    rate_limit: int | None = None  #: jobs per ``rate_window_ms`` that may be claimed
    concurrency: int | None = None  #: jobs that may be active at once
    stall: StallConfig = StallConfig()
    dlq: DlqConfig = DlqConfig()
    messages: MessageRules | None = None  #: it was made at the messages door
    known_since: int | None = None  #: of the nameless queue of a namespace: when the namespace was made
    subscriptions: tuple[PushSubscription, ...] = ()  #: webhooks that its messages are pushed to
    buffered: bool = False  #: pushes are answered once they are in the server's own log, where it has one
    rate_window_ms: int = limits.SECOND_MS  #: see rate_limit
    rate_limit_until: int | None = None  #: wall clock, ms: when the rate limit ends; None: it does not
    limits_groups: bool = False  #: some of its groups are paused or limited, see core/group_limits.py
    group_defaults: GroupDefaults | None = None  #: for groups of which nothing else is set; then ``limits_groups``, too


#: Of a queue that nothing was set of.
SETTINGS_DEFAULT: Final = QueueSettings()


def empties_bucket(before: QueueSettings, after: QueueSettings) -> bool:
    """Tell whether what a rate limit has left is forgotten: it is gone, ends, or is about another span of time."""
    if before.rate_limit is None:
        return False
    return (
        after.rate_limit is None
        or after.rate_window_ms != before.rate_window_ms
        or after.rate_limit_until != before.rate_limit_until
    )


class Standing(IntEnum):
    """Whether a shard has a queue. Numbers are stored. One shard at most says HERE or LEAVING of a queue."""

    HERE = 0  #: it is served here
    LEAVING = 1  #: it is here and can be looked at, but nothing in it changes until it has moved, or stays after all
    MOVED = 2  #: it is on another shard; what is left of it here is being deleted
    ARRIVING = 3  #: it is being copied here, and is not here yet
    CLEARING = 4  #: what is left of an earlier attempt to copy it here is being deleted
    GONE = 5  #: it is on another shard, and nothing is left of it here but the word where it went

    @property
    def is_seen(self) -> bool:
        """Tell whether what a shard has of the queue is the truth."""
        return self <= Standing.LEAVING

    @property
    def has_left(self) -> bool:
        """Tell whether the queue is on the shard at the other end of its way."""
        return self in (Standing.MOVED, Standing.GONE)


class Move(NamedTuple):
    """Where a queue stands in its way from one shard to another."""

    standing: Standing = Standing.HERE
    peer: int = 0  #: the shard at the other end
    attempt: int = 0  #: tells one try to move it from the next, so that nobody goes on with one that was given up


SETTLED: Final = Move()


class Queue(msgspec.Struct):
    """A queue as the store knows it. ``settings`` is replaced as a whole, never changed in place."""

    number: int
    namespace_number: int
    key: QueueKey
    created_at: int | None  #: when its first job arrived; None = only settings so far
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
