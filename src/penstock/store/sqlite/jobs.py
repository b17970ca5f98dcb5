"""Jobs of a transaction in the SQLite store."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import apsw

from penstock.core import limits
from penstock.core.errors import RowChanged
from penstock.core.job import JobRecord, Payload
from penstock.core.lifecycle import State
from penstock.store.catalog import except_queues, record_due
from penstock.store.sqlite import rows
from penstock.store.sqlite.transaction_base import STEP, Changed, SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.queue import Queue

_WAITING, _ACTIVE, _DELAYED = State.WAITING.value, State.ACTIVE.value, State.DELAYED.value
#: From this number of rows on, one statement with all keys reads them, instead of one statement each.
_MANY = 8
#: Replaces a payload that is not needed.
_UNREAD = Payload(b"null", None)
_HEAD_FROM = f"select {rows.HEAD} from jobs j"  # noqa: S608
_BODY_FROM = f"select {rows.HEAD}, {rows.BODY} from jobs j left join payloads p on p.id = j.id"  # noqa: S608

_READY = f"{_BODY_FROM} where j.queue = ? and j.blocked = 0 and j.state = 0 order by j.priority desc, j.position limit ?"
_READY_HEADS = (
    f"{_HEAD_FROM} where j.queue = ? and j.blocked = 0 and j.state = 0 order by j.priority desc, j.position limit ?"
)
_CUSTOM = f"{_HEAD_FROM} where j.namespace = ? and j.custom_id = ?"
_CUSTOM_ID = "select id from jobs where namespace = ? and custom_id = ?"
_UNIQUE = f"{_HEAD_FROM} where j.queue = ? and j.unique_key = ? and j.state in (0, 1, 2, 5)"
_DUE = f"{_HEAD_FROM} where j.state = 1 and j.run_at <= ? order by j.run_at, j.id limit ?"
_LAPSED = f"{_HEAD_FROM} where j.state = 2 and j.lease_until <= ? order by j.lease_until limit ?"
_EXPIRED = (
    f"{_HEAD_FROM} where j.expires_at is not null and j.state in (0, 1, 5) and j.expires_at <= ?"
    " order by j.expires_at limit ?"
)
_NEXT_DUE = "select min(run_at) from jobs where state = 1 and run_at > ?"
_NEXT_LAPSE = "select min(lease_until) from jobs where state = 2 and lease_until > ?"
_NEXT_EXPIRY = "select min(expires_at) from jobs where expires_at is not null and state in (0, 1, 5) and expires_at > ?"


class SqliteJobs(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def job_insert(self, jobs: Sequence[tuple[JobRecord, Payload]]) -> None:
        self._begin()
        for start in range(0, len(jobs), rows.ROWS_PER_INSERT):
            if start:
                await self.pause()
            some = jobs[start : start + rows.ROWS_PER_INSERT]
            heads, bodies = rows.insert_parameters(some)
            self._db.execute(rows.insert_jobs(len(some)), heads)
            self._db.execute(rows.insert_payloads(len(some)), bodies)
        queue, tally = -1, [0]
        for job, _ in jobs:
            if job.queue != queue:
                queue, tally = job.queue, self._tally(job.queue)
            tally[job.state] += 1
            if job.state or job.expires_at is not None or job.group_id is not None:  # a plain job has no due time to record
                self._written(job)

    async def job_load(self, ids: Iterable[int]) -> list[JobRecord]:
        self._begin()
        keys = array("q", ids)
        if len(keys) < _MANY:
            return self._heads(rows.SELECT_JOB, [(job_id,) for job_id in keys], many=True)
        found: list[JobRecord] = []
        for start in range(0, len(keys), STEP):
            found += self._heads(rows.SELECT_JOBS, (apsw.carray(keys[start : start + STEP]),))
            await self.pause()
        return found

    async def job_find_ids(self, names: Iterable[tuple[int, str]]) -> list[int]:
        self._begin()
        return [job_id for (job_id,) in self._db.executemany(_CUSTOM_ID, list(names))]

    async def job_find_custom(self, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRecord]:
        return {(job.namespace, job.custom_id or ""): job for job in await self._find(_CUSTOM, list(names))}

    async def job_find_unique(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRecord]:
        return {(job.queue, job.unique_key or ""): job for job in await self._find(_UNIQUE, list(keys))}

    async def _find(self, statement: str, keys: Sequence[tuple[int, str]]) -> list[JobRecord]:
        self._begin()
        found: list[JobRecord] = []
        for start in range(0, len(keys), STEP):
            found += self._heads(statement, keys[start : start + STEP], many=True)
            await self.pause()
        return found

    async def job_ready(self, queue: Queue, limit: int, *, bodies: bool = True) -> list[tuple[JobRecord, Payload]]:
        self._begin()
        await self._groups.put_right(self.steady_ms, self.pause)
        if not bodies:
            return self._ready_heads(queue, limit)
        found: list[tuple[JobRecord, Payload]] = []
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
        if damaged:  # there may be undamaged jobs behind the damaged ones
            for each in damaged:
                self._quarantine(each)
            return await self.job_ready(queue, limit)
        return found

    def _ready_heads(self, queue: Queue, limit: int) -> list[tuple[JobRecord, Payload]]:
        while True:
            read = self._fetch(_READY_HEADS, (queue.number, limit))
            found = self._sound(read)
            if len(found) == len(read):  # otherwise there may be undamaged jobs behind the damaged ones
                return [(job, _UNREAD) for job in found]

    async def job_due(self, now_ms: int, limit: int) -> list[JobRecord]:
        found, next_ms = self._overdue(_DUE, _NEXT_DUE, now_ms, limit)
        self._catalog.horizon.due_ms = next_ms
        return found

    async def job_lease_expired(self, steady_ms: int, limit: int) -> list[JobRecord]:
        found, next_ms = self._overdue(_LAPSED, _NEXT_LAPSE, steady_ms, limit)
        self._catalog.horizon.lease_expiry_ms = next_ms
        return found

    async def job_expired(self, now_ms: int, limit: int) -> list[JobRecord]:
        found, next_ms = self._overdue(_EXPIRED, _NEXT_EXPIRY, now_ms, limit)
        self._catalog.horizon.job_expiry_ms = next_ms
        return found

    def _overdue(self, statement: str, next_statement: str, now_ms: int, limit: int) -> tuple[list[JobRecord], int | None]:
        """Read due jobs, and the time at which the next one is due: now, if there may be more of these."""
        self._begin()
        frozen = self._catalog.frozen
        rows_found = self._fetch(except_queues(statement, frozen), (now_ms, limit))
        if len(rows_found) >= limit:
            return self._sound(rows_found), now_ms
        next_ms: int | None = next(iter(self._db.execute(except_queues(next_statement, frozen), (now_ms,))))[0]
        return self._sound(rows_found), next_ms

    async def job_save(self, jobs: Sequence[Changed]) -> None:
        self._begin()
        self._guarded(rows.UPDATE_JOB, rows.update_rows(jobs), jobs)
        self._count(jobs)

    async def job_lease(self, jobs: Sequence[Changed]) -> None:
        self._begin()
        self._guarded(rows.LEASE_JOB, rows.lease_rows(jobs), jobs)
        self._count(jobs)

    def _count(self, jobs: Sequence[Changed]) -> None:
        """Count jobs in their new states, and record their due times: ``_written`` for many."""
        queue, tally = -1, [0]
        lease_expiry_ms = self._catalog.horizon.lease_expiry_ms
        for job, old_state, _ in jobs:
            state = job.state
            if state != old_state:
                if job.queue != queue:
                    queue, tally = job.queue, self._tally(job.queue)
                tally[old_state] -= 1
                tally[state] += 1
            if state == _ACTIVE:
                until = job.lease_until
                if until is not None and (lease_expiry_ms is None or until < lease_expiry_ms):
                    lease_expiry_ms = until
            elif state == _DELAYED or job.expires_at is not None:
                record_due(self._catalog.horizon, job)
            if job.group_id is not None:
                self._groups.touch(job.queue, job.group_id)
                if state == _ACTIVE and old_state == _WAITING:
                    self._groups.claimed(job.queue, job.group_id)
        self._catalog.horizon.lease_expiry_ms = lease_expiry_ms

    async def job_remove(self, jobs: Sequence[Changed]) -> None:
        self._begin()
        self._guarded(rows.DELETE_JOB, [(job.id, state, token) for job, state, token in jobs], jobs)
        self._forget([job.id for job, _, _ in jobs])
        for job, old_state, _ in jobs:
            self._tally(job.queue)[old_state] -= 1
            if job.group_id is not None:
                self._groups.touch(job.queue, job.group_id)

    async def job_rewrite(self, jobs: Sequence[JobRecord]) -> None:
        self._begin()
        for job in jobs:
            for (group,) in self._db.execute("select group_id from jobs where id = ? and group_id is not null", (job.id,)):
                self._groups.touch(job.queue, group)
        self._guarded(
            rows.REWRITE_JOB, [rows.rewrite_row(job) for job in jobs], [(job, job.state, job.token) for job in jobs]
        )
        for job in jobs:
            self._written(job)

    def _written(self, job: JobRecord) -> None:
        record_due(self._catalog.horizon, job)
        if job.group_id is not None:
            self._groups.touch(job.queue, job.group_id)

    def _guarded(self, statement: str, parameters: list[rows.Row], jobs: Sequence[Changed]) -> None:
        """Run a write that must change exactly one row for each job.

        There is no other writer, so a row that differs from what was read is damaged: the index and the table do not agree. The
        next transaction examines all of them.
        """
        before = self._db.total_changes()
        self._db.executemany(statement, parameters)
        changed = self._db.total_changes() - before
        if changed != len(jobs):
            self._store.suspects.update(job.id for job, _, _ in jobs)
            raise RowChanged(f"A write expected to change {len(jobs)} rows and changed {changed}.")
