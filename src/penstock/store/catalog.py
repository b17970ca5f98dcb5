"""The data that a store keeps in memory: its queues, the number of jobs in each state, and the next due times.

All other data stays in the database: ten million jobs take no memory here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.core.lifecycle import STORED_STATES, State
from penstock.core.pool_shares import Shares
from penstock.core.queue import MoveStep, Queue, QueueKey, StateCounts
from penstock.store.contract import Horizon

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.cron import CronRecord
    from penstock.core.job import JobRecord
    from penstock.core.queue import Move, QueueSettings
    from penstock.core.sharding import Layout

#: Number of jobs in each state, indexed by State.
Tally = list[int]
_EXPIRING = (State.WAITING, State.DELAYED, State.WAITING_CHILDREN)


class Catalog:
    """Filled when a store is opened, updated by committed transactions."""

    def __init__(self) -> None:
        self.namespaces: dict[str, int] = {}
        self.by_key: dict[QueueKey, Queue] = {}  #: the queues that are served here
        self.held: dict[str, int] = {}  #: the number of these queues in each namespace
        #: The queues that can be read here, by namespace and number. No inner dict is empty.
        self.by_namespace: dict[str, dict[int, Queue]] = {}
        self.subscribed: dict[int, Queue] = {}  #: the queues with push subscriptions, by number
        self.by_number: dict[int, Queue] = {}  #: all queues
        self.away: dict[int, Queue] = {}  #: the queues that are not served here, by number
        self.frozen: dict[int, Queue] = {}  #: the queues of ``away`` that have jobs here
        self.away_by_key: dict[QueueKey, Queue] = {}
        self.layout: Layout | None = None
        self.tallies: dict[int, Tally] = {}
        self.total: Tally = empty_tally()
        self.horizon = Horizon()
        self.crons = 0
        self.buckets: dict[int, tuple[float, int]] = {}  #: the state of rate limits, unless the database keeps it

    def add(self, queue: Queue) -> None:
        """Add a queue."""
        if len(self.by_key) >= limits.queues_max:
            raise TooMany(f"There are already {limits.queues_max} queues. Obliterate some that are not used any more.")
        self._place(queue)
        self.by_number[queue.number] = queue
        self.tallies[queue.number] = empty_tally()
        self.configure(queue, queue.settings, queue.created_at)

    def remove(self, queue: Queue) -> None:
        """Remove a queue."""
        self._displace(queue)
        del self.by_number[queue.number], self.tallies[queue.number]
        self.subscribed.pop(queue.number, None)
        self.buckets.pop(queue.number, None)

    def configure(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        """Replace the settings and the creation time of a queue."""
        queue.settings, queue.created_at = settings, created_at
        if settings.subscriptions:
            self.subscribed[queue.number] = queue
        else:
            self.subscribed.pop(queue.number, None)

    def set_move(self, queue: Queue, move: Move) -> None:
        """Record the current step of a queue's move from one shard to another."""
        self._displace(queue)
        queue.move = move
        self._place(queue)

    def _place(self, queue: Queue) -> None:
        if queue.move.step.is_seen:
            self.by_namespace.setdefault(queue.key.namespace, {})[queue.number] = queue
        if queue.move.step is MoveStep.HERE:
            self.by_key[queue.key] = queue
            self.held[queue.key.namespace] = self.held.get(queue.key.namespace, 0) + 1
        else:
            self.away[queue.number] = self.away_by_key[queue.key] = queue
            if queue.move.step is not MoveStep.GONE:
                self.frozen[queue.number] = queue

    def _displace(self, queue: Queue) -> None:
        if queue.move.step.is_seen:
            seen = self.by_namespace[queue.key.namespace]
            del seen[queue.number]
            if not seen:
                del self.by_namespace[queue.key.namespace]
        if queue.move.step is MoveStep.HERE:
            del self.by_key[queue.key]
            namespace = queue.key.namespace
            self.held[namespace] -= 1
            if not self.held[namespace]:
                del self.held[namespace]
        else:
            del self.away[queue.number], self.away_by_key[queue.key]
            self.frozen.pop(queue.number, None)

    def apply(self, deltas: dict[int, Tally]) -> None:
        """Apply the changes of a committed transaction to the counts."""
        for number, delta in deltas.items():
            tally = self.tallies.get(number)
            if tally is None:  # the queue was removed in the same transaction
                tally = empty_tally()
            for state, change in enumerate(delta):
                tally[state] += change
                self.total[state] += change

    def record_cron_due(self, cron: CronRecord) -> None:
        """Record the next tick of a cron that was just written."""
        if self.horizon.cron_ms is None or cron.next_run < self.horizon.cron_ms:
            self.horizon.cron_ms = cron.next_run


def record_due(horizon: Horizon, job: JobRecord) -> None:
    """Record when a job that was just written is due, or expires."""
    if job.state == State.ACTIVE:
        if job.lease_until is not None and (horizon.lease_expiry_ms is None or job.lease_until < horizon.lease_expiry_ms):
            horizon.lease_expiry_ms = job.lease_until
        return
    if job.state == State.DELAYED and (horizon.due_ms is None or job.run_at < horizon.due_ms):
        horizon.due_ms = job.run_at
    if (
        job.expires_at is not None
        and job.state in _EXPIRING
        and (horizon.job_expiry_ms is None or job.expires_at < horizon.job_expiry_ms)
    ):
        horizon.job_expiry_ms = job.expires_at


C = TypeVar("C", bound=Catalog)


class CatalogReads(Generic[C]):
    """Base of stores: the reads that are answered from memory."""

    catalog: C
    pool_shares: Shares = Shares()
    when_moved: list[Callable[[], None]]

    @property
    def layout(self) -> Layout | None:
        return self.catalog.layout

    @property
    def away(self) -> Mapping[int, Queue]:
        return self.catalog.away

    def queue_away(self, key: QueueKey) -> Queue | None:
        return self.catalog.away_by_key.get(key)

    def moved(self) -> None:
        """Call the subscribers of changes of queues and of the layout."""
        for call in self.when_moved:
            call()

    def _is_seen(self, job: JobRecord) -> bool:
        """Return whether the job's rows here are the valid ones: not if its queue was moved away, or is not complete here."""
        queue = self.catalog.away.get(job.queue)
        return queue is None or queue.move.step.is_seen

    def queue_find(self, key: QueueKey) -> Queue | None:
        catalog = self.catalog
        found = catalog.by_key.get(key) or catalog.away_by_key.get(key)
        return found if found is not None and found.move.step.is_seen else None

    def queues(self) -> list[Queue]:
        leaving = [queue for queue in self.catalog.frozen.values() if queue.move.step.is_seen]
        return [*self.catalog.by_key.values(), *leaving]

    def queues_of(self, namespace: str) -> list[Queue]:
        return list(self.catalog.by_namespace.get(namespace, {}).values())

    def queues_subscribed(self) -> list[Queue]:
        return [queue for queue in self.catalog.subscribed.values() if queue.move.step.is_seen]

    def queue_namespaces(self) -> list[str]:
        return list(self.catalog.by_namespace)

    def queue_count(self, namespace: str | None = None) -> int:
        if namespace is not None:
            return len(self.catalog.by_namespace.get(namespace, {}))
        return len(self.catalog.by_key) + sum(queue.move.step.is_seen for queue in self.catalog.frozen.values())

    def queue_by_number(self, number: int) -> Queue:
        return self.catalog.by_number[number]

    def queue_of(self, job: JobRecord) -> Queue:
        return self.queue_by_number(job.queue)

    def counts(self, queue: Queue) -> StateCounts:
        return as_counts(self.catalog.tallies[queue.number])

    def totals(self) -> StateCounts:
        total = self.catalog.total
        for number, queue in self.catalog.frozen.items():
            if not queue.move.step.is_seen:  # it counts on the shard that serves it
                total = [all_ - its for all_, its in zip(total, self.catalog.tallies[number], strict=True)]
        return as_counts(total)

    def cron_count(self) -> int:
        return self.catalog.crons


def except_queues(statement: str, numbers: Mapping[int, Queue]) -> str:
    """Return a statement that leaves out the jobs of queues that are not served here, if there are any."""
    if not numbers:
        return statement
    return statement.replace(" where ", f" where queue not in ({', '.join(map(str, numbers))}) and ", 1)


def empty_tally() -> Tally:
    """Return a tally of zeros."""
    return [0] * len(STORED_STATES)


def as_counts(tally: Tally) -> StateCounts:
    """Return the numbers of a tally with names."""
    return StateCounts(*tally)
