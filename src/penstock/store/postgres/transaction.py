"""One transaction on a PostgreSQL shard, in as few round trips as there are things to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from penstock.core import limits
from penstock.core.dependencies import NeedCount
from penstock.core.errors import RowChanged, TooMany
from penstock.core.ids import first_of
from penstock.core.job import Payload
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
from penstock.store.contract import Horizon, JournalBlock
from penstock.store.postgres import commit_notice, reads, rows, webhooks
from penstock.store.postgres import crons as cron_rows
from penstock.store.postgres.bulk_records import PostgresBulkRecords
from penstock.store.postgres.catalog import encode_settings
from penstock.store.postgres.clock import Reading
from penstock.store.postgres.commit_notice import CommitNotice, bring_forward
from penstock.store.postgres.errors import as_lost
from penstock.store.postgres.job_groups import PostgresJobGroups
from penstock.store.postgres.schema import LOCK_QUEUE
from penstock.store.postgres.sharding import PostgresSharding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from asyncpg import Connection

    from penstock.core.cron import Cron, CronKey
    from penstock.core.dependencies import Dependency, JobEnd
    from penstock.core.group_limits import GroupLimits
    from penstock.core.job import Job
    from penstock.core.sharding import Layout
    from penstock.core.webhook import Webhook
    from penstock.store.contract import LogEntry
    from penstock.store.postgres.rows import Changed
    from penstock.store.postgres.store import PostgresStore

_encode = msgspec.msgpack.Encoder().encode


class Finished(NamedTuple):
    """What a transaction leaves in the journal once it is committed."""

    number: int  #: of its block
    xid: str  #: the database's own number of the transaction
    block: JournalBlock
    body: bytes  #: the same, as it is stored


class PostgresTransaction(PostgresBulkRecords, PostgresSharding):
    """See ``contract.Transaction`` for what each method promises."""

    def __init__(self, store: PostgresStore, id_mark: Callable[[], int], *, alone: bool) -> None:
        super().__init__()
        self._store = store
        self._alone = alone
        self._id_mark = id_mark
        self.freed: set[int] = set()  # nothing is ever put aside: the database guards its own pages
        self.wrote = False
        self.block: JournalBlock | None = None
        self._groups = PostgresJobGroups(self._settings_of)
        self._emptied: set[int] = set()
        self._booked = Horizon()
        self._fronts: set[int] = set()  #: queues in which a job got to a place that others may take for empty
        self._new_crons = 0
        self._webhooks_changed = False
        self._changed: set[int] = set()  #: queues that others have to read again
        self._finished: Finished | None = None
        self._announced: set[int] = set()  #: queues to which this gives a ready list
        self._unlisted: set[int] = set()  #: queues that must not have got one since this began

    async def __aenter__(self) -> Self:
        store = self._store
        self._db: Connection = await store.begin(alone=self._alone)
        self._catalog = store.catalog
        try:
            await self._db.execute("begin")
            asked_ms = store.clock.local_ms()
            entered = await self._db.fetchrow(_ENTER)
            now_ms, shift, term, version, self.generation, queues, epochs, self.lost = entered
            if queues:
                self.hot = dict(zip(queues, epochs, strict=True))
            if queues or store.listed:
                # What was on a list that is gone has its old place back, before the journal tells.
                for queue in store.listed.difference(queues):
                    store.fronts.forget(queue)
                store.listed = set(queues)
            self.now_ms, self.steady_ms = store.clock.told(Reading(now_ms, shift, term), asked_ms)
            self._young = first_of(self.now_ms)
            if version != self._catalog.version:
                store.stay_alone()
                await self._catalog.refresh(self._db)
            self._known = self._catalog.version
        except BaseException as failure:
            error = as_lost(self._db, failure)
            await store.roll_back(self._db, error)
            raise store.failed(error) from failure
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        store = self._store
        committing = False
        try:
            if error is None:
                await self._put_groups_right()
                if self._events or self._deltas or self.wrote:
                    await self._finish()
                committing = True
                await self._db.execute("commit")
        except BaseException as broken:
            failure = as_lost(self._db, broken)
            committed: bool | None = False
            if committing and self._finished is not None:
                committed = await store.was_committed(self._finished, failure)
            if not committed:
                self._take_back()
                await store.roll_back(self._db, failure)
                raise store.failed(failure, unknown=committed is None) from broken
        if error is not None:
            error = as_lost(self._db, error)
            self._take_back()
            await store.roll_back(self._db, error)
            if (ours := store.failed(error)) is not error:
                raise ours from error
            return
        store.end(self._db)
        self._catalog.apply(self._deltas)
        self._catalog.crons += self._new_crons
        self._catalog.bring_forward(self._booked)
        for queue in self._fronts:  # once more: somebody may have looked before this was committed
            store.fronts.forget(queue)
        if self._finished is not None:
            number, _, block, _ = self._finished
            store.journal_next = max(store.journal_next, block.seq + len(block.events))
            self.block = store.follower.committed(number, block)
            store.worked()
        if self._moved:
            store.moved()

    async def _finish(self) -> None:
        """Number the events, tell the others, and have it checked that nothing we went by has changed."""
        self.wrote = True
        queues = self._mentioned()
        body = _encode((queues, self._events))
        booked = self._booked
        told = commit_notice.CommitNotice(
            {number: delta for number, delta in self._deltas.items() if any(delta)},
            (booked.due_ms, booked.expiry_ms, booked.lapse_ms, booked.cron_ms),
            self._new_crons,
            self._webhooks_changed,
            booked.unfollowed,
            list(self._fronts),
            list(self._changed),
        )
        touched = [number for number in self._deltas if number not in self._emptied]
        block, seq, total, xid, self.heated, self.lists_generation = await self._db.fetchrow(
            _FINISH, touched, self._known, list(self._emptied), len(self._events), self.now_ms, self._id_mark(),
            self._store.server, commit_notice.encode(told), body,
        )  # fmt: skip
        if not self._unlisted.isdisjoint(set(self.heated) - self._announced):
            raise RowChanged("A queue has got a ready list meanwhile.")
        self._store.journal_bytes = total
        self._finished = Finished(block, xid, JournalBlock(seq, self.now_ms, self._events, queues), body)

    # Queues.

    async def queue_open(self, key: QueueKey, *, must: bool = False) -> Queue:
        found = self._catalog.by_key.get(key)
        if found is not None:
            return found
        self._check_home(key)
        if not must:
            self._store.shares.check_queues(key.namespace, self._catalog.held.get(key.namespace, 0))
        return await self._make_queue(key, QueueSettings(), None, SETTLED)

    async def _make_queue(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        version = await self._next_version()
        namespace = await self._open_namespace(key.namespace)
        number = await self._db.fetchval(
            _OPEN_QUEUE, namespace, key.name, created_at, encode_settings(settings), version, *move
        )
        queue = Queue(number, namespace, key, created_at, settings, move)
        self._add_queue(queue)
        return queue

    async def queue_arrive(self, key: QueueKey, settings: QueueSettings, created_at: int | None, move: Move) -> Queue:
        self._moved = self._webhooks_changed = True  # which has the other servers look at queues, too
        return await self._make_queue(key, settings, created_at, move)

    async def queue_move(self, queue: Queue, move: Move) -> None:
        version = await self._next_version()
        before = queue.move
        await self._guarded(_MOVE_QUEUE, [*move, version, queue.number, before.standing, before.attempt], 1, "queues")
        self._moved = self._webhooks_changed = True
        self._set_move(queue, move)
        await self._catalog.look_further(self._db)
        bring_forward(self._booked, CommitNotice(horizon=_moments(self._catalog.horizon)))

    async def queues_forget(self) -> None:
        version = await self._next_version()
        await self._db.execute("update queues set removed = true, version = $1 where standing = $2", version, Standing.GONE)
        self._drop_gone()

    async def layout_save(self, layout: Layout) -> None:
        await self._next_version()
        await self._db.execute("update layout set shards = $1, epoch = $2, target = $3", *layout[1:])
        self._webhooks_changed = True
        self._set_layout(layout)

    async def queue_count(self, queue: Queue) -> StateCounts:
        return as_counts(list(await self._db.fetchrow(_COUNT_QUEUE, queue.number)))

    async def queue_tied(self, queue: Queue) -> bool:
        tied: bool = await self._db.fetchval(_TIED, queue.number)
        return tied

    async def queue_clear(self, queue: Queue, limit: int) -> int:
        for state in STORED_STATES:
            found = await self._db.fetch(_SOME_OF_QUEUE.format(int(state)), queue.number, limit)
            if found:
                ids = [row[0] for row in found]
                await self._guarded(rows.CLEAR_JOBS, [ids], len(ids))
                self._tally(queue.number)[state] -= len(ids)
                return len(ids)
        self.wrote = True
        await self._groups.forget(self._db, queue.number)
        return 0

    async def job_known(self, ids: Sequence[int]) -> set[int]:
        return {row[0] for row in await self._db.fetch("select id from jobs where id = any ($1::bigint[])", ids)}

    async def log_insert(self, logs: Sequence[tuple[int, Sequence[LogEntry]]]) -> None:
        self.wrote = True
        lines = [(job_id, line, each) for job_id, entries in logs for line, each in enumerate(entries, 1)]
        await self._db.execute(
            _INSERT_LOGS,
            [job_id for job_id, _, _ in lines],
            [line for _, line, _ in lines],
            [each.at for _, _, each in lines],
            [each.level for _, _, each in lines],
            [each.message.encode() for _, _, each in lines],
        )

    async def _open_namespace(self, name: str) -> int:
        number = self._catalog.namespaces.get(name)
        if number is None:
            opened: int | None = await self._db.fetchval(_OPEN_NAMESPACE, name)
            if opened is None:  # another server made it a moment ago, and this statement could not see it yet
                raise RowChanged
            number = self._add_namespace(name, opened)
        return number

    async def _next_version(self) -> int:
        """Have the catalog grow by one, which nobody else can do until this transaction is over."""
        self._store.stay_alone()
        self.wrote = True
        version: int = await self._db.fetchval("update catalog set version = version + 1 returning version")
        if version != self._known + 1:  # somebody else was first, and may have done the same
            raise RowChanged
        before, self._known = self._known, version

        def undo() -> None:
            self._catalog.version = before

        self._undo.append(undo)
        self._catalog.version = version
        return version

    async def queue_save(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        version = await self._next_version()
        await self._db.execute(
            "update queues set settings = $1, created_at = $2, version = $3 where number = $4",
            encode_settings(settings), created_at, version, queue.number,
        )  # fmt: skip
        if empties_bucket(queue.settings, settings):
            await self._db.execute("delete from buckets where queue = $1", queue.number)
        if queue.settings.subscriptions != settings.subscriptions:
            self._webhooks_changed = True
        self._set_queue(queue, settings, created_at)
        self._changed.add(queue.number)

    async def queue_remove(self, queue: Queue) -> None:
        version = await self._next_version()
        await self._db.execute("update queues set removed = true, version = $1 where number = $2", version, queue.number)
        await self._db.execute("delete from buckets where queue = $1", queue.number)
        await self._groups.forget(self._db, queue.number)
        if queue.settings.subscriptions:
            self._webhooks_changed = True
        self._drop_queue(queue)
        self._emptied.add(queue.number)
        self._changed.add(queue.number)

    async def is_empty(self, queue: Queue) -> bool:
        empty: bool = await self._db.fetchval("select are_empty(array[$1::int])", queue.number)
        return empty

    async def count_active(self, queue: Queue) -> int:
        await self._db.execute(_LOCK, LOCK_QUEUE, queue.number)
        count: int = await self._db.fetchval("select count(*) from jobs where state = 2 and queue = $1", queue.number)
        return count

    async def bucket_load(self, queue: Queue) -> tuple[float, int] | None:
        await self._db.execute(_LOCK, LOCK_QUEUE, queue.number)
        row = await self._db.fetchrow("select tokens, at from buckets where queue = $1", queue.number)
        return None if row is None else (row[0], row[1])

    async def bucket_save(self, queue: Queue, tokens: float, at_ms: int) -> None:
        self.wrote = True
        await self._db.execute(_SAVE_BUCKET, queue.number, tokens, at_ms)

    # Limits of groups.

    def _settings_of(self, queue: int) -> QueueSettings:
        known = self._catalog.by_number.get(queue)
        return SETTINGS_DEFAULT if known is None else known.settings

    async def group_load(self, queue: Queue, group: str) -> GroupLimits | None:
        return await self._groups.load(self._db, queue.number, group)

    async def group_save(self, queue: Queue, groups: Sequence[tuple[str, GroupLimits]]) -> None:
        self.wrote = True
        await self._groups.save(self._db, [((queue.number, group), limits_) for group, limits_ in groups])
        for group, _ in groups:
            self._groups.touch(queue.number, group)
        self.queue_touch(queue)  # that its groups are limited must still be what its settings say
        self._changed.add(queue.number)  # whoever waits there at another server may get a job now

    async def groups_limited(self, queue: Queue) -> int:
        await self._db.execute(_LOCK, LOCK_QUEUE, queue.number)
        return await self._groups.count(self._db, queue.number)

    async def group_page(self, queue: Queue, after: str, limit: int) -> list[tuple[str, GroupLimits]]:
        return await self._groups.page(self._db, queue.number, after, limit)

    async def group_reopen(self, queue: Queue, limit: int) -> int | None:
        return await self._groups.reopen(self._db, queue.number, self.steady_ms, limit)

    # Jobs.

    async def job_insert(self, jobs: Sequence[tuple[Job, Payload]]) -> None:
        if len(jobs) < rows.COPY_MIN:
            await self._db.execute(rows.INSERT_JOBS, *rows.insert_arrays(jobs))
        else:
            await self._copy("payloads", rows.COPY_PAYLOADS, rows.copied_payloads(jobs))
            await self._copy("jobs", rows.COPY_JOBS, rows.copied_jobs(jobs))
        await self._name([job for job, _ in jobs])
        for job, _ in jobs:
            self._tally(job.queue)[job.state] += 1
            # A plain job needs no attention, unless it was promised a while ago, and takes its place only now.
            if job.state or job.expires_at is not None or job.group_id is not None or job.position < self._young:
                self._written(job)
        self._catalog.bring_forward(self._booked)

    async def _copy(self, table: str, columns: Sequence[str], records: list[Any]) -> None:
        await self._db.copy_records_to_table(table, columns=columns, records=records)

    async def _name(self, jobs: Iterable[Job]) -> None:
        """Write down producers' own ids."""
        named = [job for job in jobs if job.custom_id is not None]
        if named:
            await self._db.execute(
                rows.INSERT_NAMES,
                [job.namespace for job in named],
                [job.custom_id for job in named],
                [job.id for job in named],
            )

    async def job_load(self, ids: Iterable[int]) -> list[Job]:
        return rows.read_jobs(await self._db.fetch(rows.LOAD, list(ids)))

    async def job_find_custom(self, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Job]:
        found = await self._find(rows.FIND_CUSTOM, names)
        return {(job.namespace, job.custom_id or ""): job for job in found}

    async def job_find_unique(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], Job]:
        found = await self._find(rows.FIND_UNIQUE, keys)
        return {(job.queue, job.unique_key or ""): job for job in found}

    async def _find(self, statement: str, named: Iterable[tuple[int, str]]) -> list[Job]:
        possible = [each for each in named if reads.ZERO not in each[1]]
        if not possible:
            return []
        return rows.read_jobs(
            await self._db.fetch(statement, [each[0] for each in possible], [each[1] for each in possible])
        )

    async def job_ready(self, queue: Queue, limit: int, *, bodies: bool = True) -> list[tuple[Job, Payload]]:
        await self._put_groups_right()
        fronts, clock = self._store.fronts, self._store.clock
        stretches = fronts.stretches(queue.number, self.now_ms)
        began = clock.stopwatch()
        line, along = (rows.READY, rows.READY_STRETCHES) if bodies else (rows.READY_HEADS, rows.READY_HEADS_STRETCHES)
        bytes_max = limits.claim_batch_bytes_max if bodies else limits.claim_batch_jobs_max * limits.payload_bytes_max
        if stretches is None:
            found = await self._db.fetch(line, queue.number, limit, bytes_max)
        else:
            found = await self._db.fetch(along, queue.number, limit, bytes_max, *zip(*stretches, strict=True))
        took_ms = None if stretches is not None else (clock.stopwatch() - began) * 1_000
        ready = [rows.read_job_body(row) for row in found]
        fronts.looked(queue.number, [job for job, _ in ready], limit, now_ms=self.now_ms, took_ms=took_ms)
        return ready

    async def job_due(self, now_ms: int, limit: int) -> list[Job]:
        with self._catalog.looking() as meanwhile:
            found, next_ms = await self._overdue(rows.DUE, rows.NEXT_DUE, now_ms, limit)
        self._catalog.horizon.due_ms = commit_notice.earlier(next_ms, meanwhile.due_ms)
        return found

    async def job_lapsed(self, steady_ms: int, limit: int) -> list[Job]:
        with self._catalog.looking() as meanwhile:
            found, next_ms = await self._overdue(rows.LAPSED, rows.NEXT_LAPSE, steady_ms, limit)
        self._catalog.horizon.lapse_ms = commit_notice.earlier(next_ms, meanwhile.lapse_ms)
        return found

    async def job_expired(self, now_ms: int, limit: int) -> list[Job]:
        with self._catalog.looking() as meanwhile:
            found, next_ms = await self._overdue(rows.EXPIRED, rows.NEXT_EXPIRY, now_ms, limit)
        self._catalog.horizon.expiry_ms = commit_notice.earlier(next_ms, meanwhile.expiry_ms)
        return found

    async def job_save(self, jobs: Sequence[Changed]) -> None:
        await self._guarded(rows.UPDATE_JOBS, rows.update_arrays(jobs), len(jobs))
        for job, old_state, _ in jobs:
            tally = self._tally(job.queue)
            if job.state != old_state:
                tally[old_state] -= 1
                tally[job.state] += 1
            self._written(job)
            if job.group_id is not None and old_state == State.WAITING and job.state == State.ACTIVE:
                self._groups.claimed(job.queue, job.group_id)
        self._catalog.bring_forward(self._booked)

    async def job_lease(self, jobs: Sequence[Changed]) -> None:
        groups = rows.by_lease(jobs)
        if len(groups) > rows.LEASES_MAX:
            await self.job_save(jobs)
            return
        for lease, some in groups.items():
            ids, _, old_tokens = rows.guard_arrays(some)
            tokens = [job.token for job, _, _ in some]
            written = [ids, State.WAITING, old_tokens, tokens, *lease]
            await self._guarded(rows.LEASE_JOBS, written, len(some))
        for job, old_state, _ in jobs:
            tally = self._tally(job.queue)
            tally[old_state] -= 1
            tally[job.state] += 1
            self._written(job)
            if job.group_id is not None:
                self._groups.claimed(job.queue, job.group_id)
        self._catalog.bring_forward(self._booked)

    async def job_remove(self, jobs: Sequence[Changed]) -> None:
        for state, some in rows.by_state(jobs).items():
            ids, _, old_tokens = rows.guard_arrays(some)
            await self._guarded(rows.DELETE_JOBS, [ids, state, old_tokens], len(some))
        named = [job for job, _, _ in jobs if job.custom_id is not None]
        if named:
            await self._db.execute(rows.FORGET_NAMES, [job.namespace for job in named], [job.custom_id for job in named])
        for job, old_state, _ in jobs:
            self._tally(job.queue)[old_state] -= 1
            if job.group_id is not None:
                self._groups.touch(job.queue, job.group_id)

    async def job_rewrite(self, jobs: Sequence[Job]) -> None:
        for row in await self._db.fetch(_OLD_NAMES, [job.id for job in jobs]):
            if row["group_id"] is not None:
                self._groups.touch(row["queue"], row["group_id"])
        await self._guarded(rows.REWRITE_JOBS, rows.rewrite_arrays(jobs), len(jobs))
        await self._db.execute("delete from names where job = any ($1::bigint[])", [job.id for job in jobs])
        await self._name(jobs)
        for job in jobs:
            self._tally(job.queue)
            self._written(job)
        self._catalog.bring_forward(self._booked)

    async def payload_save(self, payloads: Sequence[tuple[Job, Payload]]) -> None:
        self.wrote = True
        await self._db.execute(
            _SAVE_PAYLOADS,
            [job.id for job, _ in payloads],
            [payload.options for _, payload in payloads],
            [payload.data for _, payload in payloads],
        )

    async def payload_load(self, ids: Iterable[int]) -> dict[int, Payload]:
        found = await self._db.fetch("select id, options, data from payloads where id = any ($1::bigint[])", list(ids))
        return {job_id: Payload(data, options) for job_id, options, data in found}

    async def result_save(self, results: Iterable[tuple[int, bytes]]) -> None:
        self.wrote = True
        by_id = dict(results)
        await self._db.execute(_SAVE_RESULTS, list(by_id), list(by_id.values()))

    async def result_remove(self, ids: Iterable[int]) -> None:
        self.wrote = True
        await self._db.execute("delete from results where id = any ($1::bigint[])", list(ids))

    async def result_load(self, job_id: int) -> bytes | None:
        return await reads.result(self._db, job_id)

    # Dependencies.

    async def need_add(self, needs: Sequence[Dependency]) -> None:
        self.wrote = True
        await self._db.execute(
            _ADD_NEEDS,
            [each.job for each in needs],
            [each.needs for each in needs],
            [each.state for each in needs],
            [each.name for each in needs],
            [each.result for each in needs],
            [_utf8(each.error) for each in needs],
        )

    async def need_open(self, ends: Sequence[JobEnd], limit: int) -> list[Dependency]:
        bounds = [end.job for end in ends], [end.after for end in ends], [end.serial for end in ends]
        return [rows.read_dependency(row) for row in await self._db.fetch(_OPEN_NEEDS, *bounds, limit)]

    async def need_of(self, job_id: int) -> list[Dependency]:
        return [rows.read_dependency(row) for row in await self._db.fetch(_NEEDS_OF, job_id)]

    async def need_count(self, jobs: Sequence[int]) -> dict[int, NeedCount]:
        found = await self._db.fetch(_COUNT_NEEDS, jobs)
        return {job_id: NeedCount(*numbers) for job_id, *numbers in found}

    async def need_find(self, namespace: int, name: str) -> list[int]:
        if reads.ZERO in name:
            return []
        return [row[0] for row in await self._db.fetch(_FIND_NEEDED, namespace, name)]

    async def need_page(self, after: tuple[int, int], limit: int) -> list[Dependency]:
        return [rows.read_dependency(row) for row in await self._db.fetch(_NEED_PAGE, *after, limit)]

    async def need_save(self, needs: Sequence[Dependency]) -> None:
        self.wrote = True
        await self._db.execute(
            _SAVE_NEEDS,
            [each.job for each in needs],
            [each.needs for each in needs],
            [each.state for each in needs],
            [each.result for each in needs],
            [_utf8(each.error) for each in needs],
        )

    # Ends.

    async def end_add(self, ends: Sequence[JobEnd]) -> None:
        self.wrote = True
        await self._db.executemany(
            "insert into ends values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            [end._replace(error=_utf8(end.error)) for end in ends],  # type: ignore[arg-type]
        )
        self._catalog.horizon.unfollowed = self._booked.unfollowed = True

    async def end_list(self, limit: int) -> list[JobEnd]:
        found: list[JobEnd] = []
        size = 0
        with self._catalog.looking() as meanwhile:
            read = await self._db.fetch(_ENDS, limit, limits.flow_bytes_batch_max)
        for row in read:
            found.append(rows.read_end(row))
            size += found[-1].weight
            if size >= limits.flow_bytes_batch_max:
                break
        if not found:  # another server has told them
            self._catalog.horizon.unfollowed = meanwhile.unfollowed
        return found

    async def end_pending(self, jobs: Sequence[int]) -> set[int]:
        found = await self._db.fetch("select job from ends where job = any ($1::bigint[])", jobs)
        return {row[0] for row in found}

    async def end_advance(self, end: JobEnd) -> None:
        self.wrote = True
        await self._db.execute("update ends set after = $1 where serial = $2", end.after, end.serial)

    async def end_remove(self, serials: Sequence[int]) -> None:
        self.wrote = True
        await self._db.execute("delete from ends where serial = any ($1::bigint[])", serials)
        with self._catalog.looking() as meanwhile:
            left = await self._db.fetchval("select exists (select from ends)")
        self._catalog.horizon.unfollowed = left or meanwhile.unfollowed

    async def log_append(self, job_id: int, entry: LogEntry, keep: int) -> None:
        self.wrote = True
        line = await self._db.fetchval(_ADD_LOG, job_id, entry.at, entry.level, entry.message.encode())
        await self._db.execute("delete from logs where job = $1 and line <= $2", job_id, line - keep)

    async def log_clear(self, job_id: int, keep: int = 0) -> None:
        self.wrote = True
        await self._db.execute(
            "delete from logs where job = $1 and line <= (select max(line) from logs where job = $1) - $2", job_id, keep
        )

    # Crons.

    async def cron_load(self, keys: Iterable[CronKey]) -> list[Cron]:
        wanted = list(keys)
        names = [key.namespace for key in wanted], [key.name for key in wanted]
        return cron_rows.read(await self._db.fetch(cron_rows.LOAD, *names))

    async def cron_due(self, now_ms: int, limit: int) -> list[Cron]:
        with self._catalog.looking() as meanwhile:
            found = cron_rows.read(await self._db.fetch(cron_rows.DUE, now_ms, limit))
            next_ms = now_ms if len(found) >= limit else await self._db.fetchval(cron_rows.NEXT, now_ms)
        self._catalog.horizon.cron_ms = commit_notice.earlier(next_ms, meanwhile.cron_ms)
        return found

    async def cron_insert(self, crons: Sequence[tuple[Cron, bytes]]) -> None:
        self.wrote = True
        count = await self._db.fetchval("select count(*) from crons")
        if count + len(crons) > limits.crons_max:
            raise TooMany(f"There are already {count} cron jobs. Delete some that are not used any more.")
        for cron, data in crons:
            namespace = self._catalog.namespaces[cron.key.namespace]
            plan = cron_rows.encode_plan(cron.plan)
            values = namespace, cron.key.name, plan, cron.next_run, cron.executions, data
            cron.number = await self._db.fetchval(cron_rows.INSERT, *values)
            self._book_cron(cron)
        self._new_crons += len(crons)

    async def cron_tally(self, namespace: str) -> tuple[int, int]:
        number = self._catalog.namespaces.get(namespace)
        taken, held = await self._db.fetchrow("select count(*), count(*) filter (where namespace = $1) from crons", number)
        return taken, held

    async def cron_save(self, crons: Sequence[tuple[Cron, int]]) -> None:
        await self._write_crons(
            cron_rows.UPDATE,
            [
                [cron_rows.encode_plan(cron.plan) for cron, _ in crons],
                [cron.next_run for cron, _ in crons],
                [cron.executions for cron, _ in crons],
            ],
            crons,
        )
        for cron, _ in crons:
            self._book_cron(cron)

    async def cron_remove(self, crons: Sequence[tuple[Cron, int]]) -> None:
        await self._write_crons(cron_rows.DELETE, [], crons)
        self._new_crons -= len(crons)

    async def cron_data_save(self, cron: Cron, data: bytes) -> None:
        self.wrote = True
        await self._db.execute("update crons set data = $1 where number = $2", data, cron.number)

    async def cron_data_load(self, crons: Sequence[Cron]) -> dict[int, bytes]:
        numbers = [cron.number for cron in crons]
        found = dict(await self._db.fetch(cron_rows.SELECT_DATA, numbers, limits.claim_batch_bytes_max))
        for cron in crons:
            if cron.number not in found:
                self._book_cron(cron)
                break
        return found

    async def _write_crons(self, statement: str, values: list[Any], crons: Sequence[tuple[Cron, int]]) -> None:
        """Run a write that must change exactly one row for each cron."""
        guards = [cron.number for cron, _ in crons], [tick for _, tick in crons]
        await self._guarded(statement, [*guards, *values], len(crons), "crons")

    def _book_cron(self, cron: Cron) -> None:
        self._catalog.book_cron(cron)
        booked = self._booked
        if booked.cron_ms is None or cron.next_run < booked.cron_ms:
            booked.cron_ms = cron.next_run

    # Webhooks.

    async def webhook_save(self, webhooks_: Sequence[Webhook]) -> None:
        await self._change_webhooks()
        numbered = [(await self._open_namespace(each.namespace), each) for each in webhooks_]
        await webhooks.save(self._db, numbered)
        for each in webhooks_:
            self._catalog.webhooks[each.id] = each

    async def webhook_remove(self, ids: Sequence[int]) -> None:
        await self._change_webhooks()
        await self._db.execute("delete from webhooks where id = any ($1::bigint[])", ids)
        for webhook_id in ids:
            self._catalog.webhooks.pop(webhook_id, None)

    async def _change_webhooks(self) -> None:
        """Have it noticed if another server has changed or removed one since we looked: what is written is all of it."""
        await self._next_version()
        self._webhooks_changed = True
        before = dict(self._catalog.webhooks)

        def undo() -> None:
            self._catalog.webhooks = before

        self._undo.append(undo)

    # The fast path.

    async def hot_lock(self) -> bool:
        # With this lock, the next statement sees every list that was announced before.
        if await self._db.fetchval("select generation from catalog for update") != self.generation:
            raise RowChanged
        has_any: bool = await self._db.fetchval("select exists (select from hot)")
        return has_any

    async def hot_add(self, queue: Queue) -> None:
        self.wrote = True
        self._announced.add(queue.number)
        await self._db.execute(_ADD_HOT, queue.number)

    async def hot_fill(self, queue: int, epoch: int) -> int:
        self.wrote = True
        new_epoch: int | None = await self._db.fetchval(_FILL_HOT, queue, epoch, self.generation)
        if new_epoch is None:
            raise RowChanged
        return new_epoch

    def claims_unlisted(self, queue: int) -> None:
        self._unlisted.add(queue)

    async def hot_remove(self, queue: int, epoch: int) -> None:
        self.wrote = True
        if _changed(await self._db.execute("delete from hot where queue = $1 and epoch = $2", queue, epoch)):
            self.hot = {number: each for number, each in self.hot.items() if number != queue}

    async def abandon(self, generation: int) -> bool:
        if await self._db.fetchval("select generation from catalog for update") != generation:
            return False
        self.wrote = True
        await self._db.execute(_ABANDON, self.steady_ms)
        await self._db.execute("insert into lost select queue from hot on conflict do nothing")
        await self._db.execute("delete from hot")
        self._webhooks_changed = True  # which has the other servers look at once
        return True

    async def lost_remove(self) -> list[int]:
        found = [row[0] for row in await self._db.fetch(_REMOVE_LOST)]
        if found:
            self.wrote = True
            self._changed.update(found)  # whoever waits at one of them gets a job now
        return found

    async def generation_noted(self, generation: int) -> None:
        await self._db.execute(
            "update nodes set generation = $1 where server = $2 and generation < $1", generation, self._store.server
        )

    async def job_set_aside(self, steady_ms: int, grace_ms: int, limit: int) -> list[Job]:
        statement = except_queues(rows.SET_ASIDE, self._catalog.frozen)
        return rows.read_jobs(await self._db.fetch(statement, steady_ms, grace_ms, limit))

    async def wal_stored(self, wal: int) -> int:
        found: int | None = await self._db.fetchval("select stored from wals where wal = $1 for update", wal)
        return found or 0

    async def wal_advance(self, wal: int, before: int, number: int) -> None:
        await self._guarded(_ADVANCE_WAL, [wal, before, number, self.now_ms], 1, "logs")
        if not before:  # a new one, so let the very old ones go
            await self._db.execute("delete from wals where at < $1", self.now_ms - limits.wal_known_ms)

    # The journal.

    async def journal_trim(self, before_ms: int, bytes_max: int, limit: int) -> int:
        surplus = self._store.journal_bytes - bytes_max
        last = None
        for block, at, bytes_before in await self._db.fetch(_OLDEST_BLOCKS, limit):
            if at >= before_ms and bytes_before >= surplus:
                break
            last = block
        if last is None:
            return 0
        self.wrote = True
        return _changed(await self._db.execute("delete from journal where block <= $1", last))

    # Parts shared by the verbs.

    def _written(self, job: Job) -> None:
        book(self._booked, job)
        if job.group_id is not None:
            self._groups.touch(job.queue, job.group_id)
        if job.state == State.WAITING and 0 <= job.position < self._young:  # it has its old place back
            self._fronts.add(job.queue)
            self._store.fronts.forget(job.queue)

    async def _put_groups_right(self) -> None:
        queues = self._groups.queues
        if queues:
            for queue in queues:
                self._fronts.add(queue)
                self._store.fronts.forget(queue)
            await self._groups.put_right(self._db, self.steady_ms)

    async def _guarded(self, statement: str, parameters: Sequence[Any], expected: int, what: str = "rows") -> None:
        """Run a write that must change so many rows."""
        self.wrote = True
        changed = _changed(await self._db.execute(statement, *parameters))
        if changed != expected:
            raise RowChanged(f"A write expected to change {expected} {what} and changed {changed}.")

    async def _overdue(self, statement: str, next_statement: str, now_ms: int, limit: int) -> tuple[list[Job], int | None]:
        """Read jobs whose moment has come, and find out when the next one comes: now, if there may be more of these."""
        frozen = self._catalog.frozen
        found = rows.read_jobs(await self._db.fetch(except_queues(statement, frozen), now_ms, limit))
        if len(found) >= limit:
            return found, now_ms
        next_ms: int | None = await self._db.fetchval(except_queues(next_statement, frozen), now_ms)
        return found, next_ms


def _moments(horizon: Horizon) -> tuple[int | None, int | None, int | None, int | None]:
    return horizon.due_ms, horizon.expiry_ms, horizon.lapse_ms, horizon.cron_ms


def _changed(status: str) -> int:
    """Return the number of rows that a statement says it changed."""
    return int(status.rpartition(" ")[2])


def _utf8(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


_OLD_NAMES = "select queue, group_id from jobs where id = any ($1::bigint[])"
# In one order: the planner may read one column from an index, and the other from the table.
_ENTER = (
    "select clock_ms(), clock_shift, clock_term, version, generation, array(select queue from hot order by queue),"
    " array(select epoch from hot order by queue), array(select queue from lost) from catalog"
)
_REMOVE_LOST = (
    "delete from lost l where not exists (select from jobs j where j.state = 2 and j.started_at is null"
    " and j.lease_until is not null and j.queue = l.queue) returning l.queue"
)
# The epochs of a list never meet those of a later list of the same queue.
_ADD_HOT = "insert into hot values ($1, clock_ms() << 20) on conflict (queue) do nothing"
_FILL_HOT = (
    "with this as (select from catalog where generation = $3 for share)"
    " update hot set epoch = hot.epoch + 1 from this where queue = $1 and epoch = $2 returning epoch"
)
_ABANDON = "update catalog set generation = generation + 1, fenced_at = $1"
_ADVANCE_WAL = (
    "insert into wals values ($1, $3, $4)"
    " on conflict (wal) do update set stored = excluded.stored, at = excluded.at where wals.stored = $2"
)
_FINISH = "select * from finish($1::int[], $2, $3::int[], $4, $5, $6, $7, $8, $9)"
_LOCK = "select pg_advisory_xact_lock($1, $2)"
_OPEN_NAMESPACE = (
    "with made as (insert into namespaces (name) values ($1) on conflict (name) do nothing returning number)"
    " select number from made union all select number from namespaces where name = $1 limit 1"
)
# A queue that was removed keeps its number: a job that another server pushed meanwhile would know no other.
_OPEN_QUEUE = (
    "insert into queues (namespace, name, created_at, settings, version, standing, peer, attempt)"
    " values ($1, $2, $3, $4, $5, $6, $7, $8)"
    " on conflict (namespace, name) do update set removed = false, created_at = $3, settings = $4, version = $5,"
    " standing = $6, peer = $7, attempt = $8 returning number"
)
_MOVE_QUEUE = (
    "update queues set standing = $1, peer = $2, attempt = $3, version = $4"
    " where number = $5 and standing = $6 and attempt = $7 and not removed"
)
_COUNT_STATE = "(select count(*) from jobs where queue = $1 and state = {})"
_COUNT_QUEUE = f"select {', '.join(_COUNT_STATE.format(int(state)) for state in STORED_STATES)}"
_SOME_OF_QUEUE = "select id from jobs where queue = $1 and state = {} limit $2"
# To jobs of other queues, on this shard or another.
_TIED = (
    "select exists (select from dependencies d join jobs a on a.id = d.job left join jobs b on b.id = d.needs"
    " where d.state <= 1 and (a.queue = $1) is distinct from (b.queue = $1) and (a.queue = $1 or b.queue = $1))"
    " or exists (select from relays r join jobs b on b.id = r.needed where b.queue = $1)"
)
_INSERT_LOGS = (
    "insert into logs (job, line, at, level, message)"
    " select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bytea[])"
)
_SAVE_BUCKET = (
    "insert into buckets values ($1, $2, $3) on conflict (queue) do update set tokens = excluded.tokens, at = excluded.at"
)
_SAVE_PAYLOADS = (
    "update payloads p set options = u.options, data = u.data"
    " from unnest($1::bigint[], $2::bytea[], $3::bytea[]) as u (id, options, data) where p.id = u.id"
)
_SAVE_RESULTS = (
    "insert into results select * from unnest($1::bigint[], $2::bytea[]) on conflict (id) do update set data = excluded.data"
)
_ADD_NEEDS = (
    "insert into dependencies (job, needs, state, name, result, error)"
    " select * from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::text[], $5::bytea[], $6::bytea[])"
)
_OPEN_NEEDS = """
select d.job, d.needs, d.state, d.name, null::bytea, d.error
from unnest($1::bigint[], $2::bigint[], $3::bigint[]) with ordinality as u (needs, after, serial, place)
cross join lateral (
  select * from dependencies where needs = u.needs and state <= 1 and job > u.after and job < u.serial order by job limit $4
) as d order by u.place, d.job limit $4
"""
_NEEDS_OF = (
    "select job, needs, state, name, null::bytea, error from dependencies where job = $1 and state <= 1 order by needs"
)
_NEED_PAGE = (
    "select job, needs, state, name, null::bytea, error from dependencies"
    " where state <= 1 and (needs, job) > ($1, $2) order by needs, job limit $3"
)
_COUNT_NEEDS = (
    "select u.job, count(*) filter (where d.state <= 1), count(*) filter (where d.state = 2), count(d.job)"
    " from unnest($1::bigint[]) as u (job) left join dependencies d on d.job = u.job group by u.job"
)
_FIND_NEEDED = (
    "select distinct d.needs from dependencies d join jobs j on j.id = d.job"
    " where j.namespace = $1 and d.name = $2 and d.state = 1 order by d.needs"
)
# The newest bytes are left to the next batch: the sum is over the ends in front.
_ENDS = """
with first as materialized (select * from ends order by serial limit $1 for update)
select serial, job, state, buries, frees, inherited, error, result, after from (
  select *, sum(coalesce(length(result), 0) + 3 * coalesce(length(error), 0)) over (order by serial)
            - coalesce(length(result), 0) - 3 * coalesce(length(error), 0) as ahead from first) as e
where ahead < $2 order by serial
"""
_SAVE_NEEDS = (
    "update dependencies d set state = u.state, result = u.result, error = u.error"
    " from unnest($1::bigint[], $2::bigint[], $3::smallint[], $4::bytea[], $5::bytea[]) as u (job, needs, state, result, error)"
    " where d.job = u.job and d.needs = u.needs"
)
_ADD_LOG = (
    "insert into logs (job, line, at, level, message)"
    " values ($1, (select coalesce(max(line), 0) + 1 from logs where job = $1), $2, $3, $4) returning line"
)
# The newest block always stays: the numbering goes on from it.
_OLDEST_BLOCKS = (
    "select block, at, total - length(body) from journal where block < (select max(block) from journal)"
    " order by block limit $1"
)
