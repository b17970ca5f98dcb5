"""The SQLite store: opens the file, provides transactions, makes commits durable, and detects failures of the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import apsw
import structlog

from penstock.core.errors import OutcomeUnknown, ServerError, StorageFailed, StorageFull, StoreIncompatible
from penstock.core.limits import MEBIBYTE
from penstock.core.quota import Windows
from penstock.core.sharding import ALONE, Layout
from penstock.store.contract import (
    Capabilities,
    Follower,
    Horizon,
    QuotaCount,
    StoreStatus,
)
from penstock.store.data_directory import (
    BALLAST_BYTES_MAX,
    DirectoryLock,
    DiskReserve,
    boot_id,
    prepare_directory,
    sync_directory,
)
from penstock.store.sqlite import (
    api_keys,
    files,
    history,
    lease_clock,
    reads,
    restore_plan,
    sync_mark,
    upgrade,
    wal_check,
)
from penstock.store.sqlite.catalog import SqliteCatalog
from penstock.store.sqlite.checkpoint import Checkpointer
from penstock.store.sqlite.disk_space import DiskSpace
from penstock.store.sqlite.store_reads import SqliteStoreReads
from penstock.store.sqlite.transaction import SqliteTransaction
from penstock.store.sqlite.wal_sync import LogSync
from penstock.store.sqlite.webhooks import Webhooks
from penstock.store.sqlite.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from penstock.core.apikey import ApiKey
    from penstock.core.clock import Clock
    from penstock.store.contract import Store

log = structlog.get_logger("penstock.store")

FILE_NAME: Final = "penstock.db"
PAGE_BYTES: Final = 4_096
#: The log is moved into the main file whenever it has this many pages.
CHECKPOINT_PAGES: Final = 8_000
#: The same while the disk is full, when every page counts.
CHECKPOINT_PAGES_FULL: Final = 100
WRITER_CACHE_KIB: Final = 32 * 1024
READER_CACHE_KIB: Final = 4 * 1024
#: Prepared statements kept per connection: a few dozen operations, and inserts of each number of rows.
STATEMENTS_CACHED: Final = 512


class SqliteStore(SqliteStoreReads):
    """One data directory. Use ``await SqliteStore.open(…)``; see ``contract.Store`` for what each method promises.

    ``vfs`` and ``fdatasync`` are replaced by tests that simulate power cuts; ``read_inline`` is for tests that move the
    clock: long reads then take no time, because they do not run in a thread.
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
        self._room = DiskSpace(DiskReserve(directory, ballast_bytes), self._status, clock, self._bound_log)
        self._sync_thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-sync")
        self._checkpoint_thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-checkpoint")
        self._log_sync = LogSync(directory, self._log_path, clock, fdatasync)
        self._connected = False
        self.writer = Writer()
        self._windows = Windows()
        self._key_changes = 0  #: since it was opened: no other process changes keys
        self.when_moved: list[Callable[[], None]] = []
        self._new_layout: Layout | None = None  #: the layout that is written into a new file
        self._has_lost = False  #: published events may be lost, so that their numbers are used again
        self.suspects: set[int] = set()  #: jobs that differed from the rows that were read

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
        """Open a data directory, creating it if necessary.

        Raises StoreLocked if another process has it, StoreIncompatible if its file is another program's, newer, or damaged
        (unless ``accept_loss``, which continues with the remaining data), RestoreUnfinished, StorageFailed or StorageFull if
        it cannot be opened. A file of an older schema is upgraded; ``upgrade_copy``: a copy of it is kept first.
        ``tells_early``: events are published before they are on disk, so after a machine failure their
        numbers may be used again.
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
            store._has_lost = store._has_lost or (tells_early and store._lock.previous.machine_restarted)
            store._room.reserve.find()
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

    def _cannot_open(self, error: Exception) -> ServerError:
        if isinstance(error, apsw.FullError) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
            return StorageFull(
                f"The store in {self._directory} cannot be opened: the disk is full. Make room and start again."
            )
        return StorageFailed(
            f"The store in {self._directory} cannot be opened: {error}. Check that this user may read and write all files "
            "there, that no other program has locked them, and that the disk works."
        )

    async def close(self) -> None:
        """Make everything durable and leave a single complete file."""
        await self.writer.idle()
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

    def _connect_with_reserve(self, *, accept_loss: bool, recovering: bool = False) -> None:
        """Open the files. On a full disk that uses a part of the reserve, because files must be created beside the log."""
        reserve = self._room.reserve
        if not reserve.has_room():
            reserve.release_part()
        while True:
            try:
                self._connect_all(accept_loss=accept_loss, recovering=recovering)
            except (apsw.Error, OSError) as error:
                if not self._room.means_full(error):
                    raise
                if not reserve.release_part():
                    raise StorageFull(
                        f"The disk of {self._directory} is full, and there is no reserve left to open the data with. Free some "
                        "space and start again. Nothing was changed."
                    ) from error
            else:
                return

    def _connect_all(self, *, accept_loss: bool, recovering: bool = False) -> None:
        self._log_bytes = self._log_path.stat().st_size if self._log_path.exists() else None
        try:
            self._db = self._connect(WRITER_CACHE_KIB)
            try:
                self._check_log(accept_loss=accept_loss, recovering=recovering)  # before lost data can be overwritten
                upgrade.upgrade(self._db, self._path, self.clock, keep_copy=self._upgrade_copy)
                if self._has_lost:
                    history.raise_epoch(self._db)
                self._load()
                if not recovering:
                    self.clock = lease_clock.resume(self._db, self.clock)
                # Changes made here are on disk before they are used, and before numbers are used again.
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
        self.readers = reads.Readers(
            lambda: self._connect(READER_CACHE_KIB, read_only=True),
            self.clock,
            lambda: self.pool_shares,
            inline=self._read_inline,
        )
        self.checkpointer = Checkpointer(
            lambda: self._connect(READER_CACHE_KIB), self._checkpoint_thread, CHECKPOINT_PAGES, self.writer.idle
        )
        self.checkpointer.when_done = self._log_sync.log_may_restart
        self._db.set_wal_hook(self._log_grew)  # replaces SQLite's own checkpoints inside of commits
        self._connected = True

    def _close_unchanged(self) -> None:
        self._keep_log()
        self._db.close()
        if self._log_bytes is None and self._log_path.exists() and self._log_path.stat().st_size == 0:
            self._log_path.unlink()  # SQLite has created it: a missing log must be missing at the next start, too
            self._log_path.with_name(f"{FILE_NAME}-shm").unlink(missing_ok=True)

    def _keep_log(self) -> None:
        """Keep the log unchanged when the file is closed. Otherwise SQLite copies it into the main file and removes it."""
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
                    self._lock.note(used=True, clean=True)  # before the log is removed, so that it never counts as missing
                else:
                    log.warning("another program reads the file; the log stays and is read at the next start")
            except apsw.Error as error:
                log.warning("checkpoint at shutdown failed; the log stays and is read at the next start", error=str(error))
        else:
            # Copying the log does not check its checksums. The system may have dropped data that it could not write, so the
            # log must be read again before it is used.
            self._keep_log()
        self._db.close()
        self._log_sync.close()

    @property
    def source(self) -> str:
        return f"sqlite:{self._path.absolute()}"

    def _connect(self, cache_kib: int, *, read_only: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        flags |= apsw.SQLITE_OPEN_NOMUTEX  # each connection is used by one thread at a time: its locks would only cost time
        db = apsw.Connection(str(self._path), flags=flags, vfs=self._vfs, statementcachesize=STATEMENTS_CACHED)
        db.set_busy_timeout(5_000)
        db.pragma("cache_size", -cache_kib)
        if not read_only:
            db.pragma("journal_mode", "wal")
            # The store makes commits durable with fdatasync of the log, once per batch, in a thread.
            db.pragma("synchronous", "normal")
            db.pragma("journal_size_limit", 64 * MEBIBYTE)
            db.pragma("cell_size_check", True)
            db.pragma("temp_store", "memory")
        return db

    def _check_files(self, *, accept_loss: bool) -> None:
        """Refuse to start with an empty file where there was data before. Raises StoreIncompatible."""
        files.check_file(self._path, self._log_path)
        previous = self._lock.previous
        has_mark = sync_mark.read(self._directory) is not None  # it shows whether a missing log was needed
        log_expected = previous.used and not previous.clean and not has_mark
        missing = [
            path.name
            for path, expected in ((self._path, previous.used), (self._log_path, log_expected))
            if expected and not (path.exists() and (path == self._log_path or path.stat().st_size))
        ]
        if missing and not accept_loss:
            raise StoreIncompatible(
                f"{' and '.join(missing)} in {self._directory} are missing: their jobs would be lost. Put them back, "
                "restore a backup with: penstock restore, or start with --accept-loss to continue without them. Nothing was "
                "changed."
            )
        self._has_lost = bool(missing)
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_CLOEXEC, 0o600))  # other users must not read the data in jobs

    def _check_log(self, *, accept_loss: bool, recovering: bool) -> None:
        """Refuse to continue without commits that were on disk. Raises StoreIncompatible.

        ``recovering``: a sync has failed in this process, so commits that were never synced may be lost, but no others.
        """
        list(self._db.execute("select count(*) from sqlite_schema"))  # makes SQLite replay the log
        lost = wal_check.lost_commits(self._db, self._path)
        same_boot = self._lock.previous.boot_id == boot_id() != ""
        if lost and same_boot and not accept_loss and not recovering:
            raise StoreIncompatible(
                f"{self._path}-wal is damaged: at least {lost} commits behind the damage would be lost. Restore a backup with: "
                "penstock restore, or start with --accept-loss to continue without them. Nothing was changed."
            )
        salts, frames = sync_mark.salts_of(self._log_path), wal_check.replayed_frames(self._db)
        found = sync_mark.read_log_state(self._db, self._log_bytes, salts, frames, same_boot=same_boot)
        accepted = sync_mark.check(
            self._directory, sync_mark.read(self._directory), found, accept_loss=accept_loss and not recovering
        )
        if lost and same_boot and not recovering:
            log.warning("started with --accept-loss: commits behind the damage of the log are dropped", commits=lost)
        elif lost:
            log.warning(
                "the log ends in incomplete commits that are dropped; after a power cut that is expected and none of them "
                "was acknowledged with durability always",
                commits=lost,
            )
        self._has_lost = self._has_lost or accepted or bool(lost and (same_boot or recovering))

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

    async def layout_refresh(self) -> None:
        """There is no other server."""

    async def stores_known(self) -> list[int]:
        """There is no other server."""
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
        """No other server writes to the file."""

    async def keep_node(self) -> None:
        """There is no other server."""

    async def lead(self, _name: str, _for_ms: int) -> int | None:
        return 1

    async def quota_take(self, takes: Sequence[QuotaCount]) -> list[int]:
        """Count in memory: there is only one server, and its counts may be lost when it stops."""
        return [self._quota_take(*take) for take in takes]

    def _quota_take(self, namespace: str, jobs: int, quota: int | None) -> int:
        if jobs < 0:
            self._windows.refund(namespace, -jobs)
            return 0
        return self._windows.take(namespace, jobs, quota, self.clock.steady_ms())

    async def key_add(self, key: ApiKey, most: int) -> None:
        await self.writer.idle()
        self.check_writable(grows=True)
        try:
            api_keys.add(self.db, key, most)
        except apsw.Error as error:
            raise self.failed(error) from error
        self._key_changes += 1
        await self.sync()

    async def key_revoke(self, key_id: str) -> bool:
        await self.writer.idle()
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
        await self.writer.idle()
        return self._key_changes, api_keys.read(self.db)

    async def key_revision(self) -> int:
        return self._key_changes

    async def sync(self) -> None:
        await self.writer.idle()
        try:
            position = self._log_sync.position(self.journal_next)
            await asyncio.get_running_loop().run_in_executor(self._sync_thread, self._log_sync.sync, position)
        except OSError as error:
            self._stop_writes(f"fsync failed: {error}")
            raise OutcomeUnknown from error
        self._log_sync.schedule_mark_sync(self._checkpoint_thread.submit)

    def committed(self, *, recount: bool, moved: bool) -> None:
        """Handle the commit of a transaction."""
        if self._status.full and not self._status.writable:
            self._room.worked()
        if moved:
            self.moved()
        if recount:
            self.catalog.recount(self._db)
            self._count_quarantined()

    def rolled_back(self) -> None:
        """Handle the rollback of a transaction: the times in the horizon may be wrong."""
        with contextlib.suppress(apsw.Error):  # the next write detects a failing disk
            self.catalog.read_horizon(self._db)

    def failed(self, error: apsw.Error) -> ServerError:
        """Convert an error of SQLite to a ServerError, and record its meaning for later writes."""
        if self._room.means_full(error):
            return self._room.refuse()
        if isinstance(error, apsw.BusyError):
            return StorageFailed("Another program holds a lock on the data file. Nothing was stored; retry in a moment.")
        if isinstance(error, apsw.ConstraintError):
            return ServerError(f"A write broke a rule of the store: {error}")
        self._stop_writes(str(error))
        return StorageFailed()

    def _log_grew(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._log_sync.log_has(pages, self.journal_next)
        self.checkpointer.log_has(pages)
        return apsw.SQLITE_OK

    def _bound_log(self) -> None:
        """Keep the log so short that it fits into the reserve, in case the disk becomes full; shorter still while it is."""
        reserve = self._room.reserve.goal // PAGE_BYTES // 4
        pages = min(CHECKPOINT_PAGES, max(CHECKPOINT_PAGES_FULL, reserve)) if reserve else CHECKPOINT_PAGES
        self.checkpointer.every(CHECKPOINT_PAGES_FULL if self._status.full else pages)

    # Failures.

    def status(self) -> StoreStatus:
        return self._status

    def size_bytes(self) -> int:
        """Return the size of the store on disk, log included."""
        return sum(path.stat().st_size for path in (self._path, self._log_path) if path.exists())

    def down(self) -> list[str]:
        return [] if self._status.writable or self._status.full else [self._status.error or "unknown"]

    @property
    def journals(self) -> Sequence[Store]:
        return (self,)

    def check_writable(self, *, grows: bool) -> None:
        self._status.check(grows=grows)

    async def recover(self) -> bool:
        """Try to recover from a failure. Returns whether the store accepts writes again."""
        await self.writer.idle()
        if self._status.full:
            if self._room.regain():
                self._recovered()
        elif self._status.error is None:
            self._room.regain()
        else:
            try:
                await self._reopen()
            except (apsw.Error, OSError, ServerError) as error:
                log.error("storage still fails", error=str(error))
            else:
                self._recovered()
                self._room.secure()
        return self._status.error is None

    async def _reopen(self) -> None:
        """Read everything again from the file and move it into the main file with full syncs.

        After a failed fsync the system may have dropped data that it could not write. All acknowledged data had been synced
        before; the rest is either still readable, and is made durable now, or fails its checksum and is dropped by SQLite.
        """
        await self._disconnect_all(tidy=False)
        self._connect_with_reserve(accept_loss=True, recovering=True)
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
