"""One transaction of the SQLite store: begun at its first statement, committed or rolled back when it is left."""

from __future__ import annotations

from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import apsw
import msgspec
import structlog

from penstock.core import limits
from penstock.core.dependencies import NeedCount
from penstock.core.errors import RowChanged, TooMany
from penstock.core.events import EventKind
from penstock.core.job import Job, Payload
from penstock.core.lifecycle import STORED_STATES, State
from penstock.core.queue import (
    SETTINGS_DEFAULT,
    SETTLED,
    Move,
    Queue,
    QueueKey,
    QueueSettings,
    Standing,
    StateCounts,
    empties_bucket,
)
from penstock.store.catalog import as_counts, book, except_queues
from penstock.store.contract import JournalBlock
from penstock.store.sqlite import crons as cron_rows
from penstock.store.sqlite import lease_clock, rows
from penstock.store.sqlite.bulk_records import SqliteBulkRecords
from penstock.store.sqlite.catalog import encode_settings
from penstock.store.sqlite.job_groups import SqliteJobGroups
from penstock.store.sqlite.sharding import SqliteSharding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from penstock.core.clock import Clock
    from penstock.core.cron import Cron, CronKey
    from penstock.core.dependencies import Dependency, JobEnd
    from penstock.core.group_limits import GroupLimits
    from penstock.core.sharding import Layout
    from penstock.core.webhook import Webhook
    from penstock.store.contract import LogEntry
    from penstock.store.sqlite.store import SqliteStore

log = structlog.get_logger("penstock.store")

Changed = tuple[Job, int, int]
"""A job with the state and the token it was read with."""

_WAITING, _ACTIVE, _DELAYED = State.WAITING.value, State.ACTIVE.value, State.DELAYED.value
#: From so many on, rows are asked for by one statement that has all keys, instead of one after the other.
_MANY = 8
#: In place of a payload that nobody wants to see.
_UNREAD = Payload(b"null", None)
_encode = msgspec.msgpack.Encoder().encode
_HEAD_FROM = f"select {rows.HEAD} from jobs j"  # noqa: S608
_BODY_FROM = f"select {rows.HEAD}, {rows.BODY} from jobs j left join payloads p on p.id = j.id"  # noqa: S608

_READY = f"{_BODY_FROM} where j.queue = ? and j.blocked = 0 and j.state = 0 order by j.priority desc, j.position limit ?"
_READY_HEADS = (
    f"{_HEAD_FROM} where j.queue = ? and j.blocked = 0 and j.state = 0 order by j.priority desc, j.position limit ?"
)
_CUSTOM = f"{_HEAD_FROM} where j.namespace = ? and j.custom_id = ?"
_UNIQUE = f"{_HEAD_FROM} where j.queue = ? and j.unique_key = ? and j.state in (0, 1, 2, 5)"
_DUE = f"{_HEAD_FROM} where j.state = 1 and j.run_at <= ? order by j.run_at, j.id limit ?"
_LAPSED = f"{_HEAD_FROM} where j.state = 2 and j.lease_until <= ? order by j.lease_until limit ?"
_EXPIRED = (
    f"{_HEAD_FROM} where j.expires_at is not null and j.state in (0, 1, 5) and j.expires_at <= ?"
    " order by j.expires_at limit ?"
)
# The newest block always stays: the numbering goes on from it.
_OLDEST_BLOCKS = (
    "select seq, at, total - length(body) from journal where seq < (select max(seq) from journal) order by seq limit ?"
)
_OPEN_NEEDS = (
    "select job, needs, state, name, null, error from dependencies"
    " where needs = ? and state <= 1 and job > ? and job < ? order by job limit ?"
)
_NEEDS_OF = "select job, needs, state, name, null, error from dependencies where job = ? and state <= 1 order by needs"
_NEED_PAGE = (
    "select job, needs, state, name, null, error from dependencies"
    " where state <= 1 and (needs, job) > (?, ?) order by needs, job limit ?"
)
_COUNT_NEEDS = (
    "select ?1, count(*) filter (where state <= 1), count(*) filter (where state = 2), count(*)"
    " from dependencies where job = ?1"
)
_FIND_NEEDED = (
    "select distinct d.needs from dependencies d join jobs j on j.id = d.job"
    " where d.name = ? and d.state = 1 and j.namespace = ? order by d.needs"
)
_ENDS = "select serial, job, state, buries, frees, inherited, error, result, after from ends order by serial limit ?"
# Each over the index of its state.
_OF_QUEUE = {
    State.WAITING: "from jobs indexed by jobs_ready where queue = ? and state = 0",
    State.DELAYED: "from jobs indexed by jobs_delayed where queue = ? and state = 1",
    State.ACTIVE: "from jobs where queue = ? and state = 2",
    State.COMPLETED: "from jobs indexed by jobs_finished where queue = ? and state >= 3 and state = 3",
    State.DEAD: "from jobs indexed by jobs_finished where queue = ? and state >= 3 and state = 4",
    State.WAITING_CHILDREN: "from jobs indexed by jobs_finished where queue = ? and state >= 3 and state = 5",
}
_COUNT_QUEUE = {state: f"select count(*) {where}" for state, where in _OF_QUEUE.items()}
_SOME_OF_QUEUE = {state: f"select id {where} limit ?" for state, where in _OF_QUEUE.items()}
# To jobs of other queues, on this shard or another.
_TIED = (
    "select exists (select 1 from dependencies d join jobs a on a.id = d.job left join jobs b on b.id = d.needs"
    " where d.state <= 1 and (a.queue = ?1) is not (b.queue = ?1) and (a.queue = ?1 or b.queue = ?1))"
    " or exists (select 1 from relays r join jobs b on b.id = r.needed where b.queue = ?1)"
)
_NEXT_DUE = "select min(run_at) from jobs where state = 1 and run_at > ?"
_NEXT_LAPSE = "select min(lease_until) from jobs where state = 2 and lease_until > ?"
_NEXT_EXPIRY = "select min(expires_at) from jobs where expires_at is not null and state in (0, 1, 5) and expires_at > ?"


class SqliteTransaction(SqliteBulkRecords, SqliteSharding):
    """See ``contract.Transaction`` for what each method promises."""

    def __init__(self, store: SqliteStore, clock: Clock, id_mark: Callable[[], int]) -> None:
        super().__init__()
        self._store = store
        self._clock = clock
        self._catalog = store.catalog
        self._db = store.db
        self._id_mark = id_mark
        self.freed: set[int] = set()
        self.wrote = False
        self.block: JournalBlock | None = None
        self._begun = False
        self._groups = SqliteJobGroups(self._db, self._settings_of)
        self._recount = False
        self._new_crons = 0

    async def __aenter__(self) -> Self:
        if self._store.checkpointer.finishing:
            await self._store.checkpointer.finished()
        self.now_ms, self.steady_ms = self._clock.now_ms(), self._clock.steady_ms()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                if self._begun or self._events:
                    self._commit()
                return
        except BaseException as failure:
            self._roll_back()
            if isinstance(failure, apsw.Error):
                raise self._store.failed(failure) from failure
            raise
        self._roll_back()
        if isinstance(error, apsw.Error):
            raise self._store.failed(error) from error

    def _begin(self) -> None:
        if not self._begun:
            self._store.check_writable(grows=False)
            self._db.execute("begin immediate")
            self._begun = True
            self._changes_before = self._db.total_changes()
            if self._store.suspects:
                self._examine_suspects()

    def _commit(self) -> None:
        if self._events:
            self._begin()
            self._write_journal()
        self._groups.put_right(self.steady_ms)
        self.wrote = self._db.total_changes() != self._changes_before
        self._db.execute("commit")
        self._catalog.apply(self._deltas)
        self._catalog.crons += self._new_crons
        self._store.committed(recount=self._recount, moved=self._moved)

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # after some errors SQLite has rolled back by itself
            self._db.execute("rollback")
        self._take_back()
        self._store.rolled_back()

    async def clock_mark(self) -> None:
        self._begin()
        lease_clock.save_mark(self._db, self.steady_ms)

    # Queues.

    async def queue_open(self, key: QueueKey, *, must: bool = False) -> Queue:
        found = self._catalog.by_key.get(key)
        if found is not None:
            return found
        self._check_home(key)
        if not must:
            self._store.shares.check_queues(key.namespace, self._catalog.held.get(key.namespace, 0))
        return self._make_queue(key, QueueSettings(), None, SETTLED)

    def _make_queue(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        self._begin()
        namespace = self._open_namespace(key.namespace)
        self._db.execute(
            "insert into queues (namespace, name, created_at, settings, standing, peer, attempt) values (?, ?, ?, ?, ?, ?, ?)",
            (namespace, key.name, created_at, encode_settings(settings), *move),
        )
        queue = Queue(self._db.last_insert_rowid(), namespace, key, created_at, settings, move)
        self._add_queue(queue)
        return queue

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        self._moved = True
        return self._make_queue(key, settings, created_at, move)

    async def queue_move(self, queue: Queue, move: Move) -> None:
        self._begin()
        self._db.execute(
            "update queues set standing = ?, peer = ?, attempt = ? where number = ? and standing = ? and attempt = ?",
            (*move, queue.number, queue.move.standing, queue.move.attempt),
        )
        if self._db.changes() != 1:
            raise RowChanged
        self._set_move(queue, move)
        self._catalog.look_ahead(self._db)

    async def queues_forget(self) -> None:
        self._begin()
        self._db.execute("delete from queues where standing = ?", (Standing.GONE,))
        self._drop_gone()

    async def layout_save(self, layout: Layout) -> None:
        self._begin()
        self._db.execute("update layout set shards = ?, epoch = ?, target = ?", layout[1:])
        self._set_layout(layout)

    async def queue_count(self, queue: Queue) -> StateCounts:
        found = {state: self._db.execute(_COUNT_QUEUE[state], (queue.number,)).get for state in STORED_STATES}
        return as_counts([found[state] for state in STORED_STATES])

    async def queue_tied(self, queue: Queue) -> bool:
        self._begin()
        return bool(self._db.execute(_TIED, (queue.number,)).get)

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        self._begin()
        for state in STORED_STATES:
            ids = [job_id for (job_id,) in self._db.execute(_SOME_OF_QUEUE[state], (queue.number, limit))]
            if ids:
                self._db.executemany("delete from jobs where id = ?", [(job_id,) for job_id in ids])
                self._forget(ids)
                self._tally(queue.number)[state] -= len(ids)
                return len(ids)
        self._groups.forget(queue.number)
        return 0

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        self._begin()
        found = self._db.executemany("select id from jobs where id = ?", [(job_id,) for job_id in ids])
        return {job_id for (job_id,) in found}

    async def log_insert(self, logs: Sequence[tuple[int, Sequence[LogEntry]]]) -> None:
        self._begin()
        self._db.executemany(
            "insert into logs (job, line, at, level, message) values (?, ?, ?, ?, ?)",
            [
                (job_id, line, entry.at, entry.level, entry.message)
                for job_id, entries in logs
                for line, entry in enumerate(entries, 1)
            ],
        )

    def _open_namespace(self, name: str) -> int:
        number = self._catalog.namespaces.get(name)
        if number is None:
            self._db.execute("insert into namespaces (name) values (?)", (name,))
            number = self._add_namespace(name, self._db.last_insert_rowid())
        return number

    async def queue_save(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        self._begin()
        self._db.execute(
            "update queues set settings = ?, created_at = ? where number = ?",
            (encode_settings(settings), created_at, queue.number),
        )
        if empties_bucket(queue.settings, settings):
            self._catalog.buckets.pop(queue.number, None)
        self._set_queue(queue, settings, created_at)

    async def queue_remove(self, queue: Queue) -> None:
        self._begin()
        self._db.execute("delete from queues where number = ?", (queue.number,))
        self._groups.forget(queue.number)
        self._drop_queue(queue)

    async def is_empty(self, queue: Queue) -> bool:
        counts = self.counts(queue)
        return not any(counts.of(state) for state in STORED_STATES)

    async def count_active(self, queue: Queue) -> int:
        return self.counts(queue).active

    async def bucket_load(self, queue: Queue) -> tuple[float, int] | None:
        return self._catalog.buckets.get(queue.number)

    async def bucket_save(self, queue: Queue, tokens: float, at_ms: int) -> None:
        before = self._catalog.buckets.get(queue.number)
        self._catalog.buckets[queue.number] = tokens, at_ms

        def undo() -> None:
            if before is None:
                self._catalog.buckets.pop(queue.number, None)
            else:
                self._catalog.buckets[queue.number] = before

        self._undo.append(undo)

    # Limits of groups.

    def _settings_of(self, queue: int) -> QueueSettings:
        known = self._catalog.by_number.get(queue)
        return SETTINGS_DEFAULT if known is None else known.settings

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        return self._groups.load(queue.number, group)

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        self._begin()
        for group, limits_ in groups:
            self._groups.save(queue.number, group, limits_)
            self._groups.touch(queue.number, group)

    async def groups_limited(self, queue: Queue) -> int:
        return self._groups.count(queue.number)

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        return self._groups.page(queue.number, after, limit)

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        self._begin()
        return self._groups.reopen(queue.number, self.steady_ms, limit)

    # Jobs.

    async def job_insert(self, jobs: Sequence[tuple[Job, Payload]]) -> None:
        self._begin()
        for start in range(0, len(jobs), rows.ROWS_PER_INSERT):
            some = jobs[start : start + rows.ROWS_PER_INSERT]
            heads, bodies = rows.insert_parameters(some)
            self._db.execute(rows.insert_jobs(len(some)), heads)
            self._db.execute(rows.insert_payloads(len(some)), bodies)
        queue, tally = -1, [0]
        for job, _ in jobs:
            if job.queue != queue:
                queue, tally = job.queue, self._tally(job.queue)
            tally[job.state] += 1
            if job.state or job.expires_at is not None or job.group_id is not None:  # a plain job needs no attention
                self._written(job)

    async def job_load(self, ids: Iterable[int]) -> list[Job]:
        self._begin()
        keys = array("q", ids)
        if len(keys) < _MANY:
            return self._heads(rows.SELECT_JOB, [(job_id,) for job_id in keys], many=True)
        return self._heads(rows.SELECT_JOBS, (apsw.carray(keys),))

    async def job_find_custom(self, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Job]:
        self._begin()
        return {(job.namespace, job.custom_id or ""): job for job in self._heads(_CUSTOM, list(names), many=True)}

    async def job_find_unique(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Job]:
        self._begin()
        return {(job.queue, job.unique_key or ""): job for job in self._heads(_UNIQUE, list(keys), many=True)}

    async def job_ready(self, queue: Queue, limit: int, *, bodies: bool = True) -> list[tuple[Job, Payload]]:
        self._begin()
        self._groups.put_right(self.steady_ms)
        if not bodies:
            return self._ready_heads(queue, limit)
        found: list[tuple[Job, Payload]] = []
        damaged: list[rows.DamagedRow] = []
        size = 0
        try:
            for row in self._db.execute(_READY, (queue.number, limit)):
                try:
                    job, payload = rows.read_job_body(row)
                except rows.DamagedRow as damage:
                    damaged.append(damage)
                else:
                    found.append((job, payload))
                    size += job.size
                    if size >= limits.claim_batch_bytes_max:
                        break
        except UnicodeDecodeError:
            self._quarantine_unreadable()
            return await self.job_ready(queue, limit)
        if damaged:  # there may be sound jobs behind the damaged ones
            for each in damaged:
                self._quarantine(each)
            return await self.job_ready(queue, limit)
        return found

    def _ready_heads(self, queue: Queue, limit: int) -> list[tuple[Job, Payload]]:
        while True:
            read = self._fetch(_READY_HEADS, (queue.number, limit))
            found = self._sound(read)
            if len(found) == len(read):  # otherwise there may be sound jobs behind the damaged ones
                return [(job, _UNREAD) for job in found]

    async def job_due(self, now_ms: int, limit: int) -> list[Job]:
        found, next_ms = self._overdue(_DUE, _NEXT_DUE, now_ms, limit)
        self._catalog.horizon.due_ms = next_ms
        return found

    async def job_lapsed(self, steady_ms: int, limit: int) -> list[Job]:
        found, next_ms = self._overdue(_LAPSED, _NEXT_LAPSE, steady_ms, limit)
        self._catalog.horizon.lapse_ms = next_ms
        return found

    async def job_expired(self, now_ms: int, limit: int) -> list[Job]:
        found, next_ms = self._overdue(_EXPIRED, _NEXT_EXPIRY, now_ms, limit)
        self._catalog.horizon.expiry_ms = next_ms
        return found

    async def job_save(self, jobs: Sequence[Changed]) -> None:
        self._begin()
        self._guarded(rows.UPDATE_JOB, rows.update_rows(jobs), jobs)
        self._count(jobs)

    async def job_lease(self, jobs: Sequence[Changed]) -> None:
        self._begin()
        self._guarded(rows.LEASE_JOB, rows.lease_rows(jobs), jobs)
        self._count(jobs)

    def _count(self, jobs: Sequence[Changed]) -> None:
        """Count jobs in their new states, and note when they need attention: ``_written`` for many."""
        queue, tally = -1, [0]
        lapse_ms = self._catalog.horizon.lapse_ms
        for job, old_state, _ in jobs:
            state = job.state
            if state != old_state:
                if job.queue != queue:
                    queue, tally = job.queue, self._tally(job.queue)
                tally[old_state] -= 1
                tally[state] += 1
            if state == _ACTIVE:
                until = job.lease_until
                if until is not None and (lapse_ms is None or until < lapse_ms):
                    lapse_ms = until
            elif state == _DELAYED or job.expires_at is not None:
                book(self._catalog.horizon, job)
            if job.group_id is not None:
                self._groups.touch(job.queue, job.group_id)
                if state == _ACTIVE and old_state == _WAITING:
                    self._groups.claimed(job.queue, job.group_id)
        self._catalog.horizon.lapse_ms = lapse_ms

    async def job_remove(self, jobs: Sequence[Changed]) -> None:
        self._begin()
        self._guarded(rows.DELETE_JOB, [(job.id, state, token) for job, state, token in jobs], jobs)
        self._forget([job.id for job, _, _ in jobs])
        for job, old_state, _ in jobs:
            self._tally(job.queue)[old_state] -= 1
            if job.group_id is not None:
                self._groups.touch(job.queue, job.group_id)

    async def job_rewrite(self, jobs: Sequence[Job]) -> None:
        self._begin()
        for job in jobs:
            for (group,) in self._db.execute("select group_id from jobs where id = ? and group_id is not null", (job.id,)):
                self._groups.touch(job.queue, group)
        self._guarded(
            rows.REWRITE_JOB, [rows.rewrite_row(job) for job in jobs], [(job, job.state, job.token) for job in jobs]
        )
        for job in jobs:
            self._written(job)

    async def payload_save(self, payloads: Sequence[tuple[Job, Payload]]) -> None:
        self._begin()
        self._db.executemany(
            "update payloads set checksum = ?, options = ?, data = ? where id = ?",
            [(rows.payload_checksum(job.id, each), each.options, each.data, job.id) for job, each in payloads],
        )

    async def payload_load(self, ids: Iterable[int]) -> dict[int, Payload]:
        self._begin()
        found: dict[int, Payload] = {}
        for row in self._fetch(rows.SELECT_JOB_BODY, [(job_id,) for job_id in ids], many=True):
            try:
                job, payload = rows.read_job_body(row)
            except rows.DamagedRow as damage:
                self._quarantine(damage)
            else:
                found[job.id] = payload
        return found

    async def result_save(self, results: Iterable[tuple[int, bytes]]) -> None:
        self._begin()
        self._db.executemany("insert or replace into results (id, data) values (?, ?)", results)

    async def result_remove(self, ids: Iterable[int]) -> None:
        self._begin()
        self._db.executemany("delete from results where id = ?", [(job_id,) for job_id in ids])

    async def result_load(self, job_id: int) -> bytes | None:
        self._begin()
        return rows.read_result(self._db, job_id)

    # Dependencies.

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        self._begin()
        self._db.executemany("insert into dependencies values (?, ?, ?, ?, ?, ?)", needs)

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        self._begin()
        found = self._db.executemany(_OPEN_NEEDS, [(end.job, end.after, end.serial, limit) for end in ends])
        return [rows.read_dependency(row) for row in islice(found, limit)]

    async def need_of(self, job_id: int) -> list[Dependency]:
        self._begin()
        return [rows.read_dependency(row) for row in self._db.execute(_NEEDS_OF, (job_id,))]

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        self._begin()
        counted = self._db.executemany(_COUNT_NEEDS, [(job_id,) for job_id in jobs])
        return {job_id: NeedCount(*numbers) for job_id, *numbers in counted}

    async def need_find(self, namespace: int, name: str) -> list[int]:
        self._begin()
        return [job_id for (job_id,) in self._db.execute(_FIND_NEEDED, (name, namespace))]

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        self._begin()
        return [rows.read_dependency(row) for row in self._db.execute(_NEED_PAGE, (*after, limit))]

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        self._begin()
        self._db.executemany(
            "update dependencies set state = ?, result = ?, error = ? where job = ? and needs = ?",
            [(each.state, each.result, each.error, each.job, each.needs) for each in needs],
        )

    # Ends.

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        self._begin()
        self._db.executemany("insert into ends values (?, ?, ?, ?, ?, ?, ?, ?, ?)", ends)
        self._catalog.horizon.unfollowed = True

    async def end_list(self, limit: int) -> list[JobEnd]:
        self._begin()
        found: list[JobEnd] = []
        size = 0
        for row in self._db.execute(_ENDS, (limit,)):
            found.append(rows.read_end(row))
            size += found[-1].weight
            if size >= limits.flow_bytes_batch_max:
                break
        return found

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        self._begin()
        found = self._db.executemany("select job from ends where job = ? limit 1", [(job_id,) for job_id in jobs])
        return {job_id for (job_id,) in found}

    async def end_advance(self, end: JobEnd) -> None:
        self._begin()
        self._db.execute("update ends set after = ? where serial = ?", (end.after, end.serial))

    async def end_remove(self, serials: Sequence[int]) -> None:
        self._begin()
        self._db.executemany("delete from ends where serial = ?", [(serial,) for serial in serials])
        (self._catalog.horizon.unfollowed,) = (bool(x) for (x,) in self._db.execute("select exists (select 1 from ends)"))

    async def log_append(self, job_id: int, entry: LogEntry, keep: int) -> None:
        self._begin()
        (last,) = next(iter(self._db.execute("select coalesce(max(line), 0) from logs where job = ?", (job_id,))))
        self._db.execute(
            "insert into logs (job, line, at, level, message) values (?, ?, ?, ?, ?)",
            (job_id, last + 1, entry.at, entry.level, entry.message),
        )
        self._db.execute("delete from logs where job = ? and line <= ?", (job_id, last + 1 - keep))

    async def log_clear(self, job_id: int, keep: int = 0) -> None:
        self._begin()
        self._db.execute(
            "delete from logs where job = ?1 and line <= (select max(line) from logs where job = ?1) - ?2", (job_id, keep)
        )

    # Crons.

    async def cron_load(self, keys: Iterable[CronKey]) -> list[Cron]:
        self._begin()
        return [cron for key in keys for cron in cron_rows.read(self._db, cron_rows.FIND, tuple(key))]

    async def cron_due(self, now_ms: int, limit: int) -> list[Cron]:
        self._begin()
        found = cron_rows.read(self._db, cron_rows.DUE, (now_ms, limit))
        next_ms = now_ms if len(found) >= limit else next(iter(self._db.execute(cron_rows.NEXT, (now_ms,))))[0]
        self._catalog.horizon.cron_ms = next_ms
        return found

    async def cron_insert(self, crons: Sequence[tuple[Cron, bytes]]) -> None:
        self._begin()
        count = self._catalog.crons + self._new_crons
        if count + len(crons) > limits.crons_max:
            raise TooMany(f"There are already {count} cron jobs. Delete some that are not used any more.")
        for cron, data in crons:
            namespace = self._catalog.namespaces[cron.key.namespace]
            plan = cron_rows.encode_plan(cron.plan)
            self._db.execute(cron_rows.INSERT, (namespace, cron.key.name, plan, cron.next_run, cron.executions))
            cron.number = self._db.last_insert_rowid()
            self._db.execute(cron_rows.INSERT_DATA, (cron.number, data))
            self._catalog.book_cron(cron)
        self._new_crons += len(crons)

    async def cron_tally(self, namespace: str) -> tuple[int, int]:
        self._begin()
        number = self._catalog.namespaces.get(namespace)
        (held,) = next(iter(self._db.execute("select count(*) from crons where namespace = ?", (number,))))
        return self._catalog.crons + self._new_crons, held

    async def cron_save(self, crons: Sequence[tuple[Cron, int]]) -> None:
        self._write_crons(
            cron_rows.UPDATE,
            [(cron_rows.encode_plan(cron.plan), cron.next_run, cron.executions, cron.number, tick) for cron, tick in crons],
        )
        for cron, _ in crons:
            self._catalog.book_cron(cron)

    async def cron_remove(self, crons: Sequence[tuple[Cron, int]]) -> None:
        self._write_crons(cron_rows.DELETE, [(cron.number, tick) for cron, tick in crons])
        self._db.executemany(cron_rows.DELETE_DATA, [(cron.number,) for cron, _ in crons])
        self._new_crons -= len(crons)

    async def cron_data_save(self, cron: Cron, data: bytes) -> None:
        self._begin()
        self._db.execute(cron_rows.INSERT_DATA, (cron.number, data))

    async def cron_data_load(self, crons: Sequence[Cron]) -> dict[int, bytes]:
        self._begin()
        found: dict[int, bytes] = {}
        size = 0
        for cron in crons:
            if size >= limits.claim_batch_bytes_max:
                self._catalog.book_cron(cron)
                break
            row = next(iter(self._db.execute(cron_rows.SELECT_DATA, (cron.number,))), (b"null",))
            found[cron.number] = bytes(row[0])
            size += len(row[0])
        return found

    def _write_crons(self, statement: str, parameters: list[tuple[Any, ...]]) -> None:
        """Run a write that must change exactly one row for each cron."""
        self._begin()
        before = self._db.total_changes()
        self._db.executemany(statement, parameters)
        changed = self._db.total_changes() - before
        if changed != len(parameters):
            raise RowChanged(f"A write expected to change {len(parameters)} crons and changed {changed}.")

    # Webhooks.

    async def webhook_save(self, webhooks: Sequence[Webhook]) -> None:
        self._begin()
        self._undo.append(self._store.webhooks.undo())
        numbered = [(self._open_namespace(each.namespace), each) for each in webhooks]
        self._store.webhooks.save(self._db, numbered)

    async def webhook_remove(self, ids: Sequence[int]) -> None:
        self._begin()
        self._undo.append(self._store.webhooks.undo())
        self._store.webhooks.remove(self._db, ids)

    # The journal.

    def _write_journal(self) -> None:
        store = self._store
        queues = self._mentioned()
        body = _encode((queues, self._events))
        store.journal_bytes += len(body)
        self._db.execute(
            "insert into journal (seq, count, at, id_mark, total, body) values (?, ?, ?, ?, ?, ?)",
            (store.journal_next, len(self._events), self.now_ms, self._id_mark(), store.journal_bytes, body),
        )
        self.block = JournalBlock(store.journal_next, self.now_ms, self._events, queues)
        store.journal_next += len(self._events)
        count, size = len(self._events), len(body)

        def undo() -> None:
            store.journal_next -= count
            store.journal_bytes -= size

        self._undo.append(undo)

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        self._begin()
        surplus = self._store.journal_bytes - bytes_max
        last = None
        for seq, at, bytes_before in self._db.execute(_OLDEST_BLOCKS, (limit,)):
            if at >= before_ms and bytes_before >= surplus:
                break
            last = seq
        if last is None:
            return 0
        self._db.execute("delete from journal where seq <= ?", (last,))
        return self._db.changes()

    # Parts shared by the verbs.

    def _written(self, job: Job) -> None:
        book(self._catalog.horizon, job)
        if job.group_id is not None:
            self._groups.touch(job.queue, job.group_id)

    def _guarded(self, statement: str, parameters: list[rows.Row], jobs: Sequence[Changed]) -> None:
        """Run a write that must change exactly one row for each job.

        Nobody else writes, so a row that is not what it was read as can only be damaged: an index that says one thing and a
        table that says another. The next transaction looks at all of them.
        """
        before = self._db.total_changes()
        self._db.executemany(statement, parameters)
        changed = self._db.total_changes() - before
        if changed != len(jobs):
            self._store.suspects.update(job.id for job, _, _ in jobs)
            raise RowChanged(f"A write expected to change {len(jobs)} rows and changed {changed}.")

    def _examine_suspects(self) -> None:
        """Look at rows by their key alone, where no index can hide what the table says."""
        suspects, self._store.suspects = self._store.suspects, set()
        self._heads(rows.SELECT_JOB, [(job_id,) for job_id in suspects], many=True)

    def _overdue(self, statement: str, next_statement: str, now_ms: int, limit: int) -> tuple[list[Job], int | None]:
        """Read jobs whose moment has come, and find out when the next one comes: now, if there may be more of these."""
        self._begin()
        frozen = self._catalog.frozen
        rows_found = self._fetch(except_queues(statement, frozen), (now_ms, limit))
        if len(rows_found) >= limit:
            return self._sound(rows_found), now_ms
        next_ms: int | None = next(iter(self._db.execute(except_queues(next_statement, frozen), (now_ms,))))[0]
        return self._sound(rows_found), next_ms

    def _heads(self, statement: str, parameters: Any, *, many: bool = False) -> list[Job]:
        return self._sound(self._fetch(statement, parameters, many=many))

    def _sound(self, read: list[rows.Row]) -> list[Job]:
        """Make jobs from rows and put the damaged ones aside."""
        jobs = rows.read_jobs(read)
        if jobs is not None:
            return jobs
        found: list[Job] = []
        for row in read:
            try:
                found.append(rows.read_job(row))
            except rows.DamagedRow as damage:
                self._quarantine(damage)
        return found

    def _fetch(self, statement: str, parameters: Any, *, many: bool = False) -> list[rows.Row]:
        run = self._db.executemany if many else self._db.execute
        try:
            return list(run(statement, parameters))
        except UnicodeDecodeError:  # a bit flipped inside a text: the row cannot even be read
            self._quarantine_unreadable()
            return list(run(statement, parameters))

    def _forget(self, ids: Iterable[int]) -> None:
        """Delete all that hangs on jobs whose heads are gone."""
        keys = [(job_id,) for job_id in ids]
        self._db.executemany("delete from payloads where id = ?", keys)
        self._db.executemany("delete from results where id = ?", keys)
        self._db.executemany("delete from logs where job = ?", keys)
        self._db.executemany("delete from dependencies where job = ?", keys)

    def _quarantine(self, damage: rows.DamagedRow) -> None:
        """Put a damaged job aside, where it is kept but never delivered."""
        job_id, queue = damage.row[0], damage.row[2] if isinstance(damage.row[2], int) else 0
        body = next(iter(self._db.execute("select options, data from payloads where id = ?", (job_id,))), (None, None))
        self._db.execute(
            "insert or replace into quarantine (id, at, reason, head, options, data) values (?, ?, ?, ?, ?, ?)",
            (job_id, self.now_ms, damage.reason, rows.encode_damaged(damage.row[: rows.FIELD_COUNT + 1]), *body),
        )
        try:
            self._db.execute("delete from jobs where id = ?", (job_id,))
        except apsw.CorruptError:  # the indexes still hold what the row said before it was damaged
            self._db.execute("reindex jobs")
            self._db.execute("delete from jobs where id = ?", (job_id,))
        self._forget([job_id])
        self._recount = True
        if queue in self._catalog.by_number:
            self.freed.add(queue)
        if isinstance(group := damage.row[rows.FIELDS.index("group_id")], str):
            self._groups.touch(queue, group)
        self._events.append((EventKind.JOB_QUARANTINED.value, queue, job_id, None, damage.reason))
        log.error("job quarantined", job=job_id, reason=damage.reason)

    def _quarantine_unreadable(self) -> None:
        named = "select id from jobs where group_id is not null or unique_key is not null or custom_id is not null"
        for (job_id,) in list(self._db.execute(named)):
            try:
                list(self._db.execute(rows.SELECT_JOB, (job_id,)))
            except UnicodeDecodeError:
                raw = ", ".join(f"cast({name} as blob)" for name in rows.FIELDS[1:])
                columns = next(iter(self._db.execute(f"select id, {raw}, 0 from jobs where id = ?", (job_id,))))  # noqa: S608
                self._quarantine(rows.DamagedRow("the job's row holds broken text", columns))
