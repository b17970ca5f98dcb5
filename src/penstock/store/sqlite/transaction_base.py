"""Code that the topics of a SQLite transaction share: its start, and reads of rows that may be damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import apsw
import structlog

from penstock.core.events import EventKind
from penstock.core.job import JobRecord
from penstock.store.sqlite import rows
from penstock.store.sqlite.catalog import SqliteCatalog
from penstock.store.transaction_base import TransactionBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.store.contract import JournalBlock
    from penstock.store.sqlite.job_groups import SqliteJobGroups
    from penstock.store.sqlite.store import SqliteStore

log = structlog.get_logger("penstock.store")

#: So many rows are looked up or written between two pauses of a transaction.
STEP: Final = 500
Changed = tuple[JobRecord, int, int]
"""A job with the state and the token it was read with."""


class SqliteTransactionBase(TransactionBase[SqliteCatalog]):
    """A transaction that begins with its first statement."""

    now_ms: int
    steady_ms: int
    freed: set[int]
    wrote: bool
    block: JournalBlock | None
    _id_mark: Callable[[], int]

    _store: SqliteStore
    _db: apsw.Connection
    _begun: bool
    _groups: SqliteJobGroups
    _recount: bool  #: a damaged job was quarantined, so the counts of its queue are wrong
    _new_crons: int

    def _begin(self) -> None:
        if not self._begun:
            self._store.check_writable(grows=False)
            self._db.execute("begin immediate")
            self._begun = True
            self._changes_before = self._db.total_changes()
            if self._store.suspects:
                self._examine_suspects()

    def _open_namespace(self, name: str) -> int:
        number = self._catalog.namespaces.get(name)
        if number is None:
            self._db.execute("insert into namespaces (name) values (?)", (name,))
            number = self._add_namespace(name, self._db.last_insert_rowid())
        return number

    def _heads(self, statement: str, parameters: Any, *, many: bool = False) -> list[JobRecord]:
        return self._sound(self._fetch(statement, parameters, many=many))

    def _sound(self, read: list[rows.Row]) -> list[JobRecord]:
        """Return jobs made from rows, and quarantine the damaged ones."""
        jobs = rows.read_jobs(read)
        if jobs is not None:
            return jobs
        found: list[JobRecord] = []
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
        except UnicodeDecodeError:  # a flipped bit in a text: the row cannot be read
            self._quarantine_unreadable()
            return list(run(statement, parameters))

    def _forget(self, ids: Iterable[int]) -> None:
        """Delete all data of jobs whose rows are deleted."""
        keys = [(job_id,) for job_id in ids]
        self._db.executemany("delete from payloads where id = ?", keys)
        self._db.executemany("delete from results where id = ?", keys)
        self._db.executemany("delete from logs where job = ?", keys)
        self._db.executemany("delete from dependencies where job = ?", keys)

    def _quarantine(self, damage: rows.DamagedRow) -> None:
        """Move a damaged job to the quarantine table. It is kept and never delivered."""
        job_id, queue = damage.row[0], damage.row[2] if isinstance(damage.row[2], int) else 0
        body = next(iter(self._db.execute("select options, data from payloads where id = ?", (job_id,))), (None, None))
        self._db.execute(
            "insert or replace into quarantine (id, at, reason, head, options, data) values (?, ?, ?, ?, ?, ?)",
            (job_id, self.now_ms, damage.reason, rows.encode_damaged(damage.row[: rows.FIELD_COUNT + 1]), *body),
        )
        try:
            self._db.execute("delete from jobs where id = ?", (job_id,))
        except apsw.CorruptError:  # the indexes still contain the values of the row before the damage
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

    def _examine_suspects(self) -> None:
        """Read rows by their key only, without an index."""
        suspects, self._store.suspects = self._store.suspects, set()
        self._heads(rows.SELECT_JOB, [(job_id,) for job_id in suspects], many=True)
