"""Payloads, results and logs of jobs, in a transaction of the SQLite store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.store.sqlite import rows
from penstock.store.sqlite.transaction_base import SqliteTransactionBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.job import JobRecord, Payload
    from penstock.store.contract import LogEntry


class SqliteJobData(SqliteTransactionBase):
    """The methods are documented in ``contract.Transaction``."""

    async def payload_save(self, payloads: Sequence[tuple[JobRecord, Payload]]) -> None:
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

    async def log_append(self, job_id: int, entry: LogEntry, keep: int) -> None:
        self._begin()
        (last,) = next(iter(self._db.execute("select coalesce(max(line), 0) from logs where job = ?", (job_id,))))
        self._db.execute(
            "insert into logs (job, line, at, level, message) values (?, ?, ?, ?, ?)",
            (job_id, last + 1, entry.at, entry.level, entry.message),
        )
        self._db.execute("delete from logs where job = ? and line <= ?", (job_id, last + 1 - keep))

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

    async def log_clear(self, job_id: int, keep: int = 0) -> None:
        self._begin()
        self._db.execute(
            "delete from logs where job = ?1 and line <= (select max(line) from logs where job = ?1) - ?2", (job_id, keep)
        )
