"""The claim: its arguments, and its state. ``serve_claims.py`` has its function, ``claim_waiters.py`` the waiters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.core.job import Delivery, details_of
from penstock.engine.command import IfUnknown, QueueCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import JobRecord
    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.command import AnyCommand, Command
    from penstock.engine.unit_of_work import UnitOfWork


class ClaimShard(Protocol):
    """The engine of the shard that has a claim."""

    def leave_line(self, claim: Claim, /) -> bool:
        """Remove a claim from the line of its queue; False: it was not in it."""

    def run_in_background(self, command: AnyCommand, /) -> None:
        """Run a command of the server itself, for which no caller waits."""


class ClaimNote(Protocol):
    """A record of a claim, which the transaction of the claim writes."""

    async def write(self, shard: int, work: UnitOfWork, jobs: Sequence[JobRecord]) -> None:
        """Record which jobs of a shard were leased."""

    def taken_back(self) -> Command[Any]:
        """Return the command that releases the jobs and deletes the record."""


class ClaimState:
    """The state of a claim between its submission and its answer. Only these methods change it."""

    __slots__ = ("engine", "is_abandoned", "skips_ready_list", "wait_ms", "waits_until")

    def __init__(self, wait_ms: int, *, skips_ready_list: bool) -> None:
        self.wait_ms = wait_ms  #: how long it waits at this shard, once it begins to wait there
        self.waits_until: int | None = None  #: end of that wait (steady ms of the engine's clock); None: it has not begun
        self.skips_ready_list = skips_ready_list  #: the store serves it, even if its queue has a ready list
        self.engine: ClaimShard | None = None  #: of the shard that its queue was moved to; None: it was not moved
        self.is_abandoned = False  #: the caller does not wait for the answer any more

    def begin_wait(self, steady_ms: int) -> int:
        """Begin to wait, unless that was done before. Return the end of the wait (steady ms)."""
        if self.waits_until is None:
            self.waits_until = steady_ms + self.wait_ms
        return self.waits_until

    def suspend_wait(self, steady_ms: int) -> None:
        """Keep only the time that is left: the queue moves to another shard, whose clock differs."""
        self.wait_ms = max(0, (self.waits_until or steady_ms) - steady_ms)
        self.waits_until = None

    def resume_wait(self, left_ms: int) -> None:
        """Set the time that is left after the queue has moved."""
        self.wait_ms = left_ms

    def move_to(self, engine: ClaimShard) -> None:
        """Record that the engine of another shard has the claim now."""
        self.engine = engine

    def skip_ready_list(self) -> None:
        """Let the store serve the claim from now on."""
        self.skips_ready_list = True

    def abandon(self) -> None:
        """Record that the caller does not wait for the answer any more."""
        self.is_abandoned = True


class Claim(QueueCommand[list[Delivery]]):
    """Request up to ``count`` jobs, waiting up to ``wait_ms`` for the first. These arguments do not change; ``state`` does.

    ``lease_ms``: length of the lease without a heartbeat (None: the queue's stall interval). ``note``: written by the
    transaction of the claim; the answer then has the first job only, without its payload, and does not wait for the fsync.
    ``skips_ready_list``: the store serves the claim, even if the queue has a ready list.
    """

    __slots__ = ("count", "lease_ms", "note", "owner", "state", "wait_ms")

    if_unknown = IfUnknown.PULL

    def __init__(
        self,
        queue: QueueKey,
        count: int = 1,
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        owner: str | None = None,
        note: ClaimNote | None = None,
        skips_ready_list: bool = False,
    ) -> None:
        self.queue = queue
        self.count: Final = count
        self.wait_ms: Final = wait_ms
        self.lease_ms: Final = lease_ms
        self.owner: Final = owner
        self.note: Final = note
        self.state: Final = ClaimState(wait_ms, skips_ready_list=skips_ready_list)

    def tenant(self) -> str | None:
        """Return its namespace."""
        return self.queue.namespace

    def weight(self) -> int:
        """Return how many jobs it requests."""
        return self.count


def lease_ms_of(queue: Queue, asked_ms: int | None, job: JobRecord | None = None) -> int:
    """Return the length of a lease (ms) for a claim that requested ``asked_ms``; None: by the queue's settings.

    ``job``: None means a job without a stall timeout of its own.
    """
    stall = queue.settings.stall
    default_ms = max(stall.stall_interval, stall.grace_period) if stall.enabled else 0
    lease_ms = default_ms if asked_ms is None else asked_ms
    if job is not None and job.details is not None and lease_ms and stall.enabled:
        own = details_of(job).stall_timeout
        if own is not None:
            # A worker that sends nothing for this long loses the job. A shorter lease that the claim requested ends earlier.
            own = max(own, stall.grace_period)
            lease_ms = own if asked_ms is None else min(own, lease_ms)
    return lease_ms
