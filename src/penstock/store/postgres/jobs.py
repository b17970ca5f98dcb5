"""Jobs of a transaction on a PostgreSQL shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.core import limits
from penstock.core.lifecycle import State
from penstock.store.catalog import except_queues, record_due
from penstock.store.postgres import commit_notice, reads, rows
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import JobRecord, Payload
    from penstock.core.queue import Queue
    from penstock.store.postgres.rows import Changed

_OLD_NAMES = "select queue, group_id from jobs where id = any ($1::bigint[])"


class PostgresJobs(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def job_insert(self, jobs: Sequence[tuple[JobRecord, Payload]]) -> None:
        if len(jobs) < rows.COPY_MIN:
            await self._db.execute(rows.INSERT_JOBS, *rows.insert_arrays(jobs))
        else:
            await self._copy("payloads", rows.COPY_PAYLOADS, rows.copied_payloads(jobs))
            await self._copy("jobs", rows.COPY_JOBS, rows.copied_jobs(jobs))
        await self._name([job for job, _ in jobs])
        for job, _ in jobs:
            self._tally(job.queue)[job.state] += 1
            # A plain job needs no due time, unless it was answered from a buffer before, and is stored only now.
            if job.state or job.expires_at is not None or job.group_id is not None or job.position < self._young:
                self._written(job)
        self._catalog.bring_forward(self._own_horizon)

    async def _copy(self, table: str, columns: Sequence[str], records: list[Any]) -> None:
        await self._db.copy_records_to_table(table, columns=columns, records=records)

    async def _name(self, jobs: Iterable[JobRecord]) -> None:
        """Write custom ids."""
        named = [job for job in jobs if job.custom_id is not None]
        if named:
            await self._db.execute(
                rows.INSERT_NAMES,
                [job.namespace for job in named],
                [job.custom_id for job in named],
                [job.id for job in named],
            )

    async def job_load(self, ids: Iterable[int]) -> list[JobRecord]:
        return rows.read_jobs(await self._db.fetch(rows.LOAD, list(ids)))

    async def job_find_ids(self, names: Iterable[tuple[int, str]]) -> list[int]:
        possible = [each for each in names if reads.ZERO not in each[1]]
        found = await self._db.fetch(rows.FIND_IDS, [each[0] for each in possible], [each[1] for each in possible])
        return [job_id for (job_id,) in found]

    async def job_find_custom(self, names: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRecord]:
        found = await self._find(rows.FIND_CUSTOM, names)
        return {(job.namespace, job.custom_id or ""): job for job in found}

    async def job_find_unique(self, keys: Iterable[tuple[int, str]]) -> dict[tuple[int, str], JobRecord]:
        found = await self._find(rows.FIND_UNIQUE, keys)
        return {(job.queue, job.unique_key or ""): job for job in found}

    async def _find(self, statement: str, named: Iterable[tuple[int, str]]) -> list[JobRecord]:
        possible = [each for each in named if reads.ZERO not in each[1]]
        if not possible:
            return []
        return rows.read_jobs(
            await self._db.fetch(statement, [each[0] for each in possible], [each[1] for each in possible])
        )

    async def job_ready(self, queue: Queue, limit: int, *, bodies: bool = True) -> list[tuple[JobRecord, Payload]]:
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
        fronts.record_query(queue.number, [job for job, _ in ready], limit, now_ms=self.now_ms, took_ms=took_ms)
        return ready

    async def job_due(self, now_ms: int, limit: int) -> list[JobRecord]:
        with self._catalog.track_commits() as meanwhile:
            found, next_ms = await self._overdue(rows.DUE, rows.NEXT_DUE, now_ms, limit)
        self._catalog.horizon.due_ms = commit_notice.earlier(next_ms, meanwhile.due_ms)
        return found

    async def job_lease_expired(self, steady_ms: int, limit: int) -> list[JobRecord]:
        with self._catalog.track_commits() as meanwhile:
            found, next_ms = await self._overdue(rows.LAPSED, rows.NEXT_LAPSE, steady_ms, limit)
        self._catalog.horizon.lease_expiry_ms = commit_notice.earlier(next_ms, meanwhile.lease_expiry_ms)
        return found

    async def job_expired(self, now_ms: int, limit: int) -> list[JobRecord]:
        with self._catalog.track_commits() as meanwhile:
            found, next_ms = await self._overdue(rows.EXPIRED, rows.NEXT_EXPIRY, now_ms, limit)
        self._catalog.horizon.job_expiry_ms = commit_notice.earlier(next_ms, meanwhile.job_expiry_ms)
        return found

    async def _overdue(
        self, statement: str, next_statement: str, now_ms: int, limit: int
    ) -> tuple[list[JobRecord], int | None]:
        """Read due jobs, and the time at which the next one is due: now, if there may be more of these."""
        frozen = self._catalog.frozen
        found = rows.read_jobs(await self._db.fetch(except_queues(statement, frozen), now_ms, limit))
        if len(found) >= limit:
            return found, now_ms
        next_ms: int | None = await self._db.fetchval(except_queues(next_statement, frozen), now_ms)
        return found, next_ms

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
        self._catalog.bring_forward(self._own_horizon)

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
        self._catalog.bring_forward(self._own_horizon)

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

    async def job_rewrite(self, jobs: Sequence[JobRecord]) -> None:
        for row in await self._db.fetch(_OLD_NAMES, [job.id for job in jobs]):
            if row["group_id"] is not None:
                self._groups.touch(row["queue"], row["group_id"])
        await self._guarded(rows.REWRITE_JOBS, rows.rewrite_arrays(jobs), len(jobs))
        await self._db.execute("delete from names where job = any ($1::bigint[])", [job.id for job in jobs])
        await self._name(jobs)
        for job in jobs:
            self._tally(job.queue)
            self._written(job)
        self._catalog.bring_forward(self._own_horizon)

    def _written(self, job: JobRecord) -> None:
        record_due(self._own_horizon, job)
        if job.group_id is not None:
            self._groups.touch(job.queue, job.group_id)
        if job.state == State.WAITING and 0 <= job.position < self._young:  # it has its old position again
            self._fronts.add(job.queue)
            self._store.fronts.forget(job.queue)
