"""What the SQLite store keeps in memory: its queues, how many jobs are in which state, and what falls due next.

There is one writer, so these are exact. Everything else stays on disk: ten million jobs cost no memory here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.core.lifecycle import STORED_STATES, State
from penstock.core.queue import Counts, Queue, QueueKey, QueueSettings
from penstock.store.contract import Horizon

if TYPE_CHECKING:
    import apsw

    from penstock.core.cron import Cron
    from penstock.core.job import Job

_decode_settings = msgspec.msgpack.Decoder(QueueSettings).decode
encode_settings = msgspec.msgpack.Encoder().encode

#: Number of jobs in each state, indexed by State.
Tally = list[int]
_EXPIRING = (State.WAITING, State.DELAYED, State.WAITING_CHILDREN)


class Catalog:
    """Filled from the file when it is opened, kept in step by committed transactions."""

    def __init__(self, db: apsw.Connection) -> None:
        self.namespaces: dict[str, int] = {
            name: number for number, name in db.execute("select number, name from namespaces")
        }
        names = {number: name for name, number in self.namespaces.items()}
        self.by_key: dict[QueueKey, Queue] = {}
        self.by_number: dict[int, Queue] = {}
        self.tallies: dict[int, Tally] = {}
        self.total: Tally = [0] * len(STORED_STATES)
        self.horizon = Horizon()
        self.crons: int = next(iter(db.execute("select count(*) from crons")))[0]
        for number, namespace, name, created_at, settings in db.execute(
            "select number, namespace, name, created_at, settings from queues"
        ):
            self.add(Queue(number, namespace, QueueKey(names[namespace], name), created_at, _decode_settings(settings)))
        self.recount(db)
        self.look_ahead(db)

    def add(self, queue: Queue) -> None:
        """Know a queue."""
        if len(self.by_key) >= limits.queues_max:
            raise TooMany(f"There are already {limits.queues_max} queues. Obliterate some that are not used any more.")
        self.by_key[queue.key] = queue
        self.by_number[queue.number] = queue
        self.tallies[queue.number] = [0] * len(STORED_STATES)

    def remove(self, queue: Queue) -> None:
        """Forget a queue."""
        del self.by_key[queue.key], self.by_number[queue.number], self.tallies[queue.number]

    def recount(self, db: apsw.Connection) -> None:
        """Count all jobs anew."""
        self.total = [0] * len(STORED_STATES)
        for number in self.tallies:
            self.tallies[number] = [0] * len(STORED_STATES)
        for state in STORED_STATES:
            # One scan per state, so that each runs over the small index of that state instead of the whole table.
            for number, count in db.execute(_COUNT_BY_QUEUE[state]):
                if number in self.tallies:
                    self.tallies[number][state] = count
                    self.total[state] += count

    def apply(self, deltas: dict[int, Tally]) -> None:
        """Take over what a committed transaction changed."""
        for number, delta in deltas.items():
            tally = self.tallies.get(number)
            if tally is None:  # the queue was removed in the same transaction
                tally = [0] * len(STORED_STATES)
            for state, change in enumerate(delta):
                tally[state] += change
                self.total[state] += change

    def look_ahead(self, db: apsw.Connection) -> None:
        """Find out from the file what falls due next."""
        row = next(iter(db.execute(_NEXT_MOMENTS)))
        horizon = self.horizon
        horizon.due_ms, horizon.expiry_ms, horizon.lapse_ms, horizon.cron_ms, unfollowed = row
        horizon.unfollowed = bool(unfollowed)

    def book(self, job: Job) -> None:
        """Note when a job that has just been written will need attention."""
        horizon = self.horizon
        if job.state == State.ACTIVE:
            if job.lease_until is not None and (horizon.lapse_ms is None or job.lease_until < horizon.lapse_ms):
                horizon.lapse_ms = job.lease_until
            return
        if job.state == State.DELAYED and (horizon.due_ms is None or job.run_at < horizon.due_ms):
            horizon.due_ms = job.run_at
        if (
            job.expires_at is not None
            and job.state in _EXPIRING
            and (horizon.expiry_ms is None or job.expires_at < horizon.expiry_ms)
        ):
            horizon.expiry_ms = job.expires_at

    def book_cron(self, cron: Cron) -> None:
        """Note the next tick of a cron that has just been written."""
        if self.horizon.cron_ms is None or cron.next_run < self.horizon.cron_ms:
            self.horizon.cron_ms = cron.next_run


def as_counts(tally: Tally) -> Counts:
    """Name the numbers of a tally."""
    return Counts(*tally)


_COUNT_BY_QUEUE = {
    State.WAITING: "select queue, count(*) from jobs indexed by jobs_ready where state = 0 group by queue",
    State.DELAYED: "select queue, count(*) from jobs indexed by jobs_delayed where state = 1 group by queue",
    State.ACTIVE: "select queue, count(*) from jobs indexed by jobs_leased where state = 2 group by queue",
    State.COMPLETED: "select queue, count(*) from jobs indexed by jobs_finished where state >= 3 and state = 3 group by queue",
    State.DEAD: "select queue, count(*) from jobs indexed by jobs_finished where state >= 3 and state = 4 group by queue",
    State.WAITING_CHILDREN: (
        "select queue, count(*) from jobs indexed by jobs_finished where state >= 3 and state = 5 group by queue"
    ),
}
_NEXT_MOMENTS = """
select (select min(run_at)      from jobs where state = 1),
       (select min(expires_at)  from jobs where expires_at is not null and state in (0, 1, 5)),
       (select min(lease_until) from jobs where state = 2),
       (select min(next_run)    from crons),
       exists (select 1 from ends)
"""
