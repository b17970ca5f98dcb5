"""The SQLite store: opens the file, hands out transactions, makes commits durable, and knows when the disk is in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import apsw
import structlog

from penstock.core import limits
from penstock.core.errors import JobQuarantined, OutcomeUnknown, PenstockError, StorageFailed, StorageFull, StoreIncompatible
from penstock.core.limits import MEBIBYTE
from penstock.core.queue import QueueKey, Standing
from penstock.core.quota import Windows
from penstock.core.sharding import ALONE, Layout
from penstock.store.catalog import CatalogReads
from penstock.store.contract import (
    Capabilities,
    Follower,
    Horizon,
    JournalBlock,
    JournalPage,
    LogEntry,
    Page,
    Parcel,
    Place,
    Search,
    Selection,
    StoreStatus,
    Take,
    Whereabouts,
)
from penstock.store.data_directory import (
    BALLAST_BYTES_MAX,
    Ballast,
    DirectoryLock,
    boot_id,
    prepare_directory,
    sync_directory,
)
from penstock.store.sqlite import (
    api_keys,
    bulk_records,
    crons,
    files,
    history,
    lease_clock,
    reads,
    restore_plan,
    rows,
    sync_mark,
    upgrade,
    wal_check,
)
from penstock.store.sqlite.catalog import SqliteCatalog
from penstock.store.sqlite.checkpoint import Checkpointer
from penstock.store.sqlite.disk_space import DiskSpace
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.wal_sync import LogSync
from penstock.store.sqlite.webhooks import Webhooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.core.apikey import ApiKey
    from penstock.core.bulk_records import BulkRecord, Chunk
    from penstock.core.clock import Clock
    from penstock.core.cron import CronKey, CronRecord
    from penstock.core.dependencies import Dependency, Need
    from penstock.core.job import Delivery, Job, Payload
    from penstock.core.lifecycle import State
    from penstock.core.queue import Queue
    from penstock.core.webhook import WebhookRecord
    from penstock.store.contract import FinishedMinutes, Store

log = structlog.get_logger("penstock.store")

FILE_NAME: Final = "penstock.db"
PAGE_BYTES: Final = 4_096
#: The log is moved into the main file whenever it holds this many pages.
CHECKPOINT_PAGES: Final = 8_000
#: The same while the disk is full, when every page counts.
CHECKPOINT_PAGES_FULL: Final = 100
WRITER_CACHE_KIB: Final = 32 * 1024
READER_CACHE_KIB: Final = 4 * 1024
#: Prepared statements kept per connection: a few dozen verbs, and inserts of each number of rows.
STATEMENTS_CACHED: Final = 512
_PLACES = (
    "select j.id, q.standing, n.name, q.name from jobs j join queues q on q.number = j.queue"
    " join namespaces n on n.number = q.namespace where j.id = ?"
)


class SqliteStore(CatalogReads[SqliteCatalog]):
    """One data directory. Use ``await SqliteStore.open(…)``; see ``contract.Store`` for what each method promises.

    ``vfs`` and ``fdatasync`` are seams for the tests that pull the plug; ``read_inline`` is one for those that move the clock:
    long reads then take no time, instead of running in a thread.
    """

    capabilities = Capabilities(name="sqlite", commit_is_durable=False)
    node = 0
    servers = 1

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        vfs: str | None = None,
        fdatasync: Callable[[int], None] = os.fdatasync,
        ballast_bytes: int = BALLAST_BYTES_MAX,
        read_inline: bool = False,
    ) -> None:
        self._directory = directory
        self._path = directory / FILE_NAME
        self._log_path = directory / f"{FILE_NAME}-wal"
        self.clock = clock
        self.shard = 0
        self._layout = ALONE
        self._vfs = vfs
        self._read_inline = read_inline
        self._upgrade_copy = True
        self._lock = DirectoryLock(directory)
        self._status = StoreStatus()
        self._room = DiskSpace(Ballast(directory, ballast_bytes), self._status, clock, self._bound_log)
        self._sync_thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-sync")
        self._checkpoint_thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-checkpoint")
        self._log_sync = LogSync(directory, self._log_path, clock, fdatasync)
        self._connected = False
        self._windows = Windows()
        self._key_changes = 0  #: since it was opened: nobody else makes any
        self.when_moved: list[Callable[[], None]] = []
        self._new_layout: Layout | None = None  #: what is written into a new file
        self._has_lost = False  #: events that were told may be gone, so that their numbers come again
        self.suspects: set[int] = set()  #: jobs that were not what they had been read as

    # Opening and closing.

    @classmethod
    async def open(
        cls,
        directory: Path,
        clock: Clock,
        *,
        accept_loss: bool = False,
        upgrade_copy: bool = True,
        tells_early: bool = False,
        vfs: str | None = None,
        fdatasync: Callable[[int], None] = os.fdatasync,
        ballast_bytes: int = BALLAST_BYTES_MAX,
        read_inline: bool = False,
        layout: Layout = ALONE,
    ) -> SqliteStore:
        """Open a data directory, creating it if need be.

        Raises StoreLocked if another process has it, StoreIncompatible if its file is not ours, newer, or damaged (unless
        ``accept_loss``, which goes on with what is left), RestoreUnfinished, StorageFailed or StorageFull if it cannot be
        opened. A file of an older schema is upgraded; ``upgrade_copy``: a copy of it is kept first. ``tells_early``: events are
        told before they are on disk, so those of a machine that went down may be told anew with the same numbers.
        """
        prepare_directory(directory)
        store = cls(directory, clock, vfs=vfs, fdatasync=fdatasync, ballast_bytes=ballast_bytes, read_inline=read_inline)
        store.shard, store._layout = layout.shard, layout
        store._upgrade_copy = upgrade_copy
        store._log_sync.waits = not tells_early
        store._take_lock()
        try:
            restore_plan.check_none(directory)
            store._check_files(accept_loss=accept_loss)
            store._has_lost = store._has_lost or (tells_early and store._lock.previous.fell)
            store._room.ballast.find()
            store._connect_with_reserve(accept_loss=accept_loss)
        except BaseException as error:
            store._lock.release()
            if isinstance(error, (apsw.Error, OSError)):
                raise store._cannot_open(error) from error
            raise
        store._lock.note(used=True, clean=False)
        store._room.secure()
        store._bound_log()
        return store

    def _take_lock(self) -> None:
        try:
            self._lock.acquire()
        except OSError as error:
            raise self._cannot_open(error) from error

    def _cannot_open(self, error: Exception) -> PenstockError:
        if isinstance(error, apsw.FullError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            return StorageFull(
                f"The store in {self._directory} cannot be opened: the disk is full. Make room and start again."
            )
        return StorageFailed(
            f"The store in {self._directory} cannot be opened: {error}. Check that this user may read and write all files "
            "there, that no other program has locked them, and that the disk works."
        )

    async def close(self) -> None:
        """Make everything durable and leave a single tidy file behind."""
        clean = self._status.error is None
        if clean:
            try:
                lease_clock.save_mark(self.db, self.clock.steady_ms())
                await self.sync()
            except (OutcomeUnknown, apsw.Error):
                clean = False
        await self._disconnect_all(tidy=clean)
        self._sync_thread.shutdown()
        self._checkpoint_thread.shutdown()
        self._lock.release()

    def _connect_with_reserve(self, *, accept_loss: bool, healing: bool = False) -> None:
        """Open the files. On a full disk that takes a part of the reserve: there are files to be made beside the log."""
        ballast = self._room.ballast
        if not ballast.has_room():
            ballast.give_back()
        while True:
            try:
                self._connect_all(accept_loss=accept_loss, healing=healing)
            except (apsw.Error, OSError) as error:
                if not self._room.means_full(error):
                    raise
                if not ballast.give_back():
                    raise StorageFull(
                        f"The disk of {self._directory} is full, and there is no reserve left to open the data with. Free some "
                        "space and start again. Nothing was changed."
                    ) from error
            else:
                return

    def _connect_all(self, *, accept_loss: bool, healing: bool = False) -> None:
        self._log_bytes = self._log_path.stat().st_size if self._log_path.exists() else None
        try:
            self._db = self._connect(WRITER_CACHE_KIB)
            try:
                self._check_log(accept_loss=accept_loss, healing=healing)  # before anything is written over what may be lost
                upgrade.upgrade(self._db, self._path, self.clock, keep_copy=self._upgrade_copy)
                if self._has_lost:
                    history.raise_epoch(self._db)
                self._load()
                if not healing:
                    self.clock = lease_clock.resume(self._db, self.clock)
                # What was changed here is on disk before it is used, and before numbers are given again.
                self._log_sync.begin(self._db, self.history.identity, self.journal_next)
                self._has_lost = False
            except BaseException:
                self._log_sync.close()
                self._close_unchanged()
                raise
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise StoreIncompatible(
                f"{self._path} cannot be read as a SQLite file ({error}). Restore a backup with: penstock restore, or choose "
                "another directory with --data. Nothing was changed."
            ) from error
        sync_directory(self._directory)
        self.readers = reads.Readers(lambda: self._connect(READER_CACHE_KIB, read_only=True), inline=self._read_inline)
        self.checkpointer = Checkpointer(lambda: self._connect(READER_CACHE_KIB), self._checkpoint_thread, CHECKPOINT_PAGES)
        self.checkpointer.when_done = self._log_sync.log_may_restart
        self._db.set_wal_hook(self._log_grew)  # replaces SQLite's own checkpoints inside of commits
        self._connected = True

    def _close_unchanged(self) -> None:
        self._keep_log()
        self._db.close()
        if self._log_bytes is None and self._log_path.exists() and self._log_path.stat().st_size == 0:
            self._log_path.unlink()  # SQLite has made it: a log that is missing must be missing at the next start, too
            self._log_path.with_name(f"{FILE_NAME}-shm").unlink(missing_ok=True)

    def _keep_log(self) -> None:
        """Have the log stay as it is when the file is closed. Else SQLite copies it into the main file and removes it."""
        self._db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    async def _disconnect_all(self, *, tidy: bool) -> None:
        if not self._connected:
            return
        self._connected = False
        await self.checkpointer.close()
        self.readers.close()
        if tidy:
            try:
                if self._log_sync.end(self._db, self.journal_next):
                    self._lock.note(used=True, clean=True)  # before the log goes away, so that it is never missed in vain
                else:
                    log.warning("another program reads the file; the log stays and is read at the next start")
            except apsw.Error as error:
                log.warning("checkpoint at shutdown failed; the log stays and is read at the next start", error=str(error))
        else:
            # Copying the log does not look at its checksums. The system may have dropped what it could not write, so the log
            # must be read anew before it is believed.
            self._keep_log()
        self._db.close()
        self._log_sync.close()

    @property
    def source(self) -> str:
        return f"sqlite:{self._path.absolute()}"

    @property
    def db(self) -> apsw.Connection:
        """The writer's connection, to be used on the event loop only."""
        if not self._connected:
            raise StorageFailed
        return self._db

    def _connect(self, cache_kib: int, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        flags |= apsw.SQLITE_OPEN_NOMUTEX  # each connection is used by one thread at a time: its locks would only cost time
        db = apsw.Connection(str(self._path), flags=flags, vfs=self._vfs, statementcachesize=STATEMENTS_CACHED)
        db.set_busy_timeout(5_000)
        db.pragma("cache_size", -cache_kib)
        if not read_only:
            db.pragma("journal_mode", "wal")
            # Commits are made durable by our own fdatasync of the log, once per group, in a thread.
            db.pragma("synchronous", "normal")
            db.pragma("journal_size_limit", 64 * MEBIBYTE)
            db.pragma("cell_size_check", True)
            db.pragma("temp_store", "memory")
        return db

    def _check_files(self, *, accept_loss: bool) -> None:
        """Refuse to begin anew where there was data before. Raises StoreIncompatible."""
        files.check_file(self._path, self._log_path)
        previous = self._lock.previous
        has_mark = sync_mark.read(self._directory) is not None  # it knows whether a log that is gone is missed
        log_expected = previous.used and not previous.clean and not has_mark
        missing = [
            path.name
            for path, expected in ((self._path, previous.used), (self._log_path, log_expected))
            if expected and not (path.exists() and (path == self._log_path or path.stat().st_size))
        ]
        if missing and not accept_loss:
            raise StoreIncompatible(
                f"{' and '.join(missing)} in {self._directory} went missing: what was in there would be lost. Put it back, "
                "restore a backup with: penstock restore, or start with --accept-loss to go on without it. Nothing was changed."
            )
        self._has_lost = bool(missing)
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_CLOEXEC, 0o600))  # what people put into jobs is nobody else's

    def _check_log(self, *, accept_loss: bool, healing: bool) -> None:
        """Refuse to go on without commits that were on disk. Raises StoreIncompatible.

        ``healing``: a sync has failed in this process, so commits that were never synced may be gone, but no others.
        """
        list(self._db.execute("select count(*) from sqlite_schema"))  # makes SQLite replay the log
        lost = wal_check.lost_commits(self._db, self._path)
        same_boot = self._lock.previous.boot_id == boot_id() != ""
        if lost and same_boot and not accept_loss and not healing:
            raise StoreIncompatible(
                f"{self._path}-wal is damaged: at least {lost} commits behind the damage would be lost. Restore a backup with: "
                "penstock restore, or start with --accept-loss to go on without them. Nothing was changed."
            )
        salts, frames = sync_mark.salts_of(self._log_path), wal_check.replayed_frames(self._db)
        found = sync_mark.look(self._db, self._log_bytes, salts, frames, same_boot=same_boot)
        accepted = sync_mark.check(
            self._directory, sync_mark.read(self._directory), found, accept_loss=accept_loss and not healing
        )
        if lost and same_boot and not healing:
            log.warning("started with --accept-loss: commits behind the damage of the log are dropped", commits=lost)
        elif lost:
            log.warning(
                "the log ends in incomplete commits that are dropped; after a power cut that is expected and none of them "
                "was acknowledged with durability always",
                commits=lost,
            )
        self._has_lost = self._has_lost or accepted or bool(lost and (same_boot or healing))

    def _load(self) -> None:
        self.catalog = SqliteCatalog(self._db)
        if self.catalog.layout is not None:
            self._layout.check(self.catalog.layout)
        elif self._new_layout is not None or self._layout == ALONE:
            self._write_layout(self._new_layout or ALONE)
        self.webhooks = Webhooks(self._db)
        self.history = history.read(self._db)
        last = next(iter(self._db.execute("select seq, count, id_mark, total from journal order by seq desc limit 1")), None)
        seq, count, id_mark, total = last or (1, 0, 0, 0)
        self.journal_next: int = seq + count
        self.journal_bytes: int = total
        (max_id,) = next(iter(self._db.execute("select coalesce(max(id), 0) from jobs")))
        self.id_floor: int = max(max_id, id_mark)
        self._count_quarantined()

    def _write_layout(self, layout: Layout) -> None:
        self._db.execute("insert into layout (one, shard, shards, epoch, target) values (1, ?, ?, ?, ?)", layout)
        self.catalog.layout = layout

    async def layout_begin(self, layout: Layout) -> None:
        self._new_layout = layout
        if self._connected and self.catalog.layout is None:
            self._write_layout(layout)
        self.moved()

    async def layout_look(self) -> None:
        """Nobody else is there."""

    async def stores_known(self) -> list[int]:
        """Nobody else is there."""
        return []

    def _count_quarantined(self) -> None:
        (self._status.quarantined,) = next(iter(self._db.execute("select count(*) from quarantine")))

    # Transactions and durability.

    @property
    def horizon(self) -> Horizon:
        return self.catalog.horizon

    def transaction(self, id_mark: Callable[[], int], *, alone: bool = True) -> SqliteTransaction:  # noqa: ARG002 - it always is
        return SqliteTransaction(self, self.clock, id_mark)

    def follow(self, _listener: Follower) -> None:
        """Nobody else writes to the file."""

    async def keep_node(self) -> None:
        """Nobody else is there."""

    async def lead(self, _name: str, _for_ms: int) -> int | None:
        return 1

    async def quota_take(self, takes: Sequence[Take]) -> list[int]:
        """Count in memory: there is only one server, and what it has counted may be forgotten with it."""
        return [self._quota_take(*take) for take in takes]

    def _quota_take(self, namespace: str, jobs: int, quota: int | None) -> int:
        if jobs < 0:
            self._windows.give_back(namespace, -jobs)
            return 0
        return self._windows.take(namespace, jobs, quota, self.clock.steady_ms())

    async def key_add(self, key: ApiKey, most: int) -> None:
        self.check_writable(grows=True)
        try:
            api_keys.add(self.db, key, most)
        except apsw.Error as error:
            raise self.failed(error) from error
        self._key_changes += 1
        await self.sync()

    async def key_revoke(self, key_id: str) -> bool:
        self.check_writable(grows=False)
        while True:
            try:
                known = api_keys.revoke(self.db, key_id, self.clock.now_ms())
            except apsw.Error as error:
                ours = self.failed(error)
                if not (isinstance(ours, StorageFull) and ours.room_made):
                    raise ours from error
            else:
                break
        self._key_changes += 1
        await self.sync()
        return known

    async def key_list(self) -> tuple[int, list[ApiKey]]:
        return self._key_changes, api_keys.read(self.db)

    async def key_revision(self) -> int:
        return self._key_changes

    async def sync(self) -> None:
        try:
            position = self._log_sync.position(self.journal_next)
            await asyncio.get_running_loop().run_in_executor(self._sync_thread, self._log_sync.sync, position)
        except OSError as error:
            self._stop_writes(f"fsync failed: {error}")
            raise OutcomeUnknown from error
        self._log_sync.book_mark_sync(self._checkpoint_thread.submit)

    def committed(self, *, recount: bool, moved: bool) -> None:
        """Hear from a transaction that it is committed."""
        if self._status.full and not self._status.writable:
            self._room.worked()
        if moved:
            self.moved()
        if recount:
            self.catalog.recount(self._db)
            self._count_quarantined()

    def rolled_back(self) -> None:
        """Hear from a transaction that it was rolled back: what it said about the future may be wrong."""
        with contextlib.suppress(apsw.Error):  # a disk that fails is noticed by the next write
            self.catalog.look_ahead(self._db)

    def failed(self, error: apsw.Error) -> PenstockError:
        """Turn an error of SQLite into one of ours, and remember what it means for the writes to come."""
        if self._room.means_full(error):
            return self._room.refuse()
        if isinstance(error, apsw.BusyError):
            return StorageFailed("Another program holds a lock on the data file. Nothing was stored; retry in a moment.")
        if isinstance(error, apsw.ConstraintError):
            return PenstockError(f"A write broke a rule of the store: {error}")
        self._stop_writes(str(error))
        return StorageFailed()

    def _log_grew(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._log_sync.log_has(pages, self.journal_next)
        self.checkpointer.log_has(pages)
        return apsw.SQLITE_OK

    def _bound_log(self) -> None:
        """Keep the log so short that it fits into the reserve, should the disk get full; shorter still while it is."""
        reserve = self._room.ballast.goal // PAGE_BYTES // 4
        pages = min(CHECKPOINT_PAGES, max(CHECKPOINT_PAGES_FULL, reserve)) if reserve else CHECKPOINT_PAGES
        self.checkpointer.every(CHECKPOINT_PAGES_FULL if self._status.full else pages)

    # Trouble.

    def status(self) -> StoreStatus:
        return self._status

    def size_bytes(self) -> int:
        """Return what the store takes up on disk, log included."""
        return sum(path.stat().st_size for path in (self._path, self._log_path) if path.exists())

    def down(self) -> list[str]:
        return [] if self._status.writable or self._status.full else [self._status.error or "unknown"]

    @property
    def journals(self) -> Sequence[Store]:
        return (self,)

    def check_writable(self, *, grows: bool) -> None:
        self._status.check(grows=grows)

    async def heal(self) -> bool:
        """Try to get out of trouble; True if the store takes writes again."""
        if self._status.full:
            if self._room.regain():
                self._recovered()
        elif self._status.error is None:
            self._room.regain()
        else:
            try:
                await self._reopen()
            except (apsw.Error, OSError, PenstockError) as error:
                log.error("storage still fails", error=str(error))
            else:
                self._recovered()
                self._room.secure()
        return self._status.error is None

    async def _reopen(self) -> None:
        """Read everything again from the file and bring it into the main file with full syncs.

        After a failed fsync the system may have dropped what it could not write. Whatever was acknowledged had been synced
        before; the rest is either still readable, and is made durable now, or fails its checksum and is dropped by SQLite.
        """
        await self._disconnect_all(tidy=False)
        self._connect_with_reserve(accept_loss=True, healing=True)
        self._db.pragma("synchronous", "full")
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self._db.pragma("synchronous", "normal")
        await self.sync()

    def _stop_writes(self, reason: str) -> None:
        if self._status.error is None or self._status.full:
            log.error("storage failed: writes are refused until it works again", reason=reason)
            self._status.writable = False
            self._status.full = False
            self._status.error = reason
            self._status.since_ms = self.clock.now_ms()

    def _recovered(self) -> None:
        log.info("storage works again")
        self._status.writable, self._status.full = True, False
        self._status.error = self._status.since_ms = None
        self._bound_log()

    # Reads.

    async def job_get(self, namespace: str, ref: int | str) -> tuple[Job, Payload] | None:
        number = self.catalog.namespaces.get(namespace)
        if number is None:
            return None
        by = "id" if isinstance(ref, int) else "custom_id"
        statement = (
            f"select {rows.HEAD}, {rows.BODY} from jobs j left join payloads p on p.id = j.id"  # noqa: S608
            f" where j.{by} = ? and j.namespace = ?"
        )
        try:
            for row in self.db.execute(statement, (ref, number)):
                found = rows.read_job_body(row)
                if self._is_seen(found[0]):
                    return found
        except (rows.DamagedRow, UnicodeDecodeError):
            raise JobQuarantined from None
        return None

    async def name_find(self, namespace: str, names: Sequence[str]) -> dict[str, int]:
        number = self.catalog.namespaces.get(namespace)
        found = self.db.executemany(
            "select custom_id, id from jobs where namespace = ? and custom_id = ?", [(number, name) for name in names]
        )
        return dict(found)

    async def job_export(self, ids: Sequence[int]) -> list[Parcel]:
        return await self.readers.run(lambda db: reads.export(db, ids))

    async def job_places(self, ids: Sequence[int]) -> dict[int, Whereabouts]:
        found = self.db.executemany(_PLACES, [(job_id,) for job_id in ids])
        return {job_id: Whereabouts(Standing(standing), QueueKey(*key)) for job_id, standing, *key in found}

    async def job_select(self, selection: Selection) -> list[Place]:
        return await self.readers.run(lambda db: reads.select(db, selection))

    async def job_page(self, page: Page) -> list[Delivery]:
        return await self.readers.run(lambda db: reads.page(db, page))

    async def priority_counts(self, queue: Queue) -> dict[int, int]:
        return await self.readers.run(lambda db: reads.priority_counts(db, queue.number))

    async def prioritized_count(self, queue: Queue) -> int:
        return await self.readers.run(lambda db: reads.prioritized_count(db, queue.number))

    async def group_count(self, queue: Queue, state: State, group: str | None) -> int:
        return await self.readers.run(lambda db: reads.group_count(db, queue.number, state, group))

    async def finished_minutes(self, queue: Queue, state: State) -> FinishedMinutes:
        return await self.readers.run(lambda db: reads.finished_minutes(db, queue.number, state))

    async def result_list(self, ids: Sequence[int]) -> dict[int, bytes]:
        return await self.readers.run(lambda db: reads.results(db, ids))

    async def result_get(self, job_id: int) -> bytes | None:
        return rows.read_result(self.db, job_id)

    async def need_list(
        self, job_id: int, states: Sequence[Need] | None = None, limit: int = limits.list_jobs_max, offset: int = 0
    ) -> list[Dependency]:
        return await self.readers.run(lambda db: reads.needs(db, job_id, states, limit, offset))

    async def log_get(self, job_id: int) -> list[LogEntry]:
        return reads.logs(self.db, job_id)

    async def job_fetch(self, ids: Sequence[int]) -> list[Delivery]:
        return await self.readers.run(lambda db: reads.fetch(db, ids))

    async def head_list(self, ids: Sequence[int]) -> list[Job]:
        return await self.readers.run(lambda db: reads.heads(db, ids))

    async def entry_list(self, search: Search) -> list[BulkRecord]:
        return await self.readers.run(lambda db: bulk_records.entries(db, search))

    async def entry_totals(self, kind: int) -> tuple[int, int]:
        return await self.readers.run(lambda db: bulk_records.totals(db, kind))

    async def chunk_read(self, owner: int, after: int, limit: int) -> list[Chunk]:
        return await self.readers.run(lambda db: bulk_records.chunks(db, owner, after, limit))

    async def cron_get(self, key: CronKey) -> CronRecord | None:
        return next(iter(crons.read(self.db, crons.FIND, tuple(key))), None)

    async def cron_list(self, namespace: str) -> list[CronRecord]:
        return await self.readers.run(lambda db: crons.read(db, crons.LIST, (namespace,)))

    def webhook_list(self) -> list[WebhookRecord]:
        return sorted(self.webhooks.by_id.values(), key=lambda each: each.id)

    def webhook_find(self, webhook_id: int) -> WebhookRecord | None:
        return self.webhooks.by_id.get(webhook_id)

    async def journal_end(self) -> int:
        return self.journal_next

    async def journal_read(self, seq: int, limit: int) -> list[JournalBlock]:
        return await self.readers.run(lambda db: reads.journal(db, seq, limit))

    async def journal_first(self) -> int | None:
        return await self.readers.run(reads.journal_first)

    async def journal_page(self, seq: int, namespace: str, bytes_max: int) -> JournalPage:
        return await self.readers.run(lambda db: reads.journal_page(db, seq, namespace, bytes_max))
