"""Payloads, results and logs of jobs, in a transaction on a PostgreSQL shard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.job import Payload
from penstock.store.postgres import reads
from penstock.store.postgres.transaction_base import PostgresTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import JobRecord
    from penstock.store.contract import LogEntry

_SAVE_PAYLOADS = (
    "update payloads p set options = u.options, data = u.data"
    " from unnest($1::bigint[], $2::bytea[], $3::bytea[]) as u (id, options, data) where p.id = u.id"
)
_SAVE_RESULTS = (
    "insert into results select * from unnest($1::bigint[], $2::bytea[]) on conflict (id) do update set data = excluded.data"
)
_ADD_LOG = (
    "insert into logs (job, line, at, level, message)"
    " values ($1, (select coalesce(max(line), 0) + 1 from logs where job = $1), $2, $3, $4) returning line"
)
_INSERT_LOGS = (
    "insert into logs (job, line, at, level, message)"
    " select * from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[], $5::bytea[])"
)


class PostgresJobData(PostgresTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def payload_save(self, payloads: Sequence[tuple[JobRecord, Payload]]) -> None:
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

    async def log_append(self, job_id: int, entry: LogEntry, keep: int) -> None:
        self.wrote = True
        line = await self._db.fetchval(_ADD_LOG, job_id, entry.at, entry.level, entry.message.encode())
        await self._db.execute("delete from logs where job = $1 and line <= $2", job_id, line - keep)

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

    async def log_clear(self, job_id: int, keep: int = 0) -> None:
        self.wrote = True
        await self._db.execute(
            "delete from logs where job = $1 and line <= (select max(line) from logs where job = $1) - $2", job_id, keep
        )
