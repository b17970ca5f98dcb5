"""The catalog of the SQLite store: there is one writer, so it is exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.lifecycle import STORED_STATES, State
from penstock.core.queue import Move, MoveStep, Queue, QueueKey, QueueSettings
from penstock.core.sharding import Layout
from penstock.store import catalog
from penstock.store.catalog import empty_tally

if TYPE_CHECKING:
    import apsw

_decode_settings = msgspec.msgpack.Decoder(QueueSettings).decode
encode_settings = msgspec.msgpack.Encoder().encode


class SqliteCatalog(catalog.Catalog):
    """Filled from the file when it is opened."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__()
        self.namespaces = {name: number for number, name in db.execute("select number, name from namespaces")}
        names = {number: name for name, number in self.namespaces.items()}
        self.crons = next(iter(db.execute("select count(*) from crons")))[0]
        for row in db.execute("select shard, shards, epoch, target from layout"):
            self.layout = Layout(*row)
        for number, namespace, name, created_at, settings, step, peer, attempt in db.execute(
            "select number, namespace, name, created_at, settings, standing, peer, attempt from queues"
        ):
            key, move = QueueKey(names[namespace], name), Move(MoveStep(step), peer, attempt)
            self.add(Queue(number, namespace, key, created_at, _decode_settings(settings), move))
        self.recount(db)
        self.read_horizon(db)

    def recount(self, db: apsw.Connection) -> None:
        """Count all jobs again."""
        self.total = empty_tally()
        for number in self.tallies:
            self.tallies[number] = empty_tally()
        for state in STORED_STATES:
            # One scan per state, so that each runs over the small index of that state instead of the whole table.
            for number, count in db.execute(_COUNT_BY_QUEUE[state]):
                if number in self.tallies:
                    self.tallies[number][state] = count
                    self.total[state] += count

    def read_horizon(self, db: apsw.Connection) -> None:
        """Read the next due times from the file."""
        row = next(iter(db.execute(_NEXT_MOMENTS)))
        horizon = self.horizon
        horizon.due_ms, horizon.job_expiry_ms, horizon.lease_expiry_ms, horizon.cron_ms, unfollowed = row
        horizon.unfollowed = bool(unfollowed)


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
