"""The open write-ahead log: makes it durable, and records that position in the mark. See ``sync_mark``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import apsw
import structlog

from penstock.store.sqlite import sync_mark, wal_check
from penstock.store.sqlite.sync_mark import MarkFile, Position
from penstock.store.sync_mark_file import SYNC_EVERY_MS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.core.clock import Alarm, Clock

log = structlog.get_logger("penstock.store")


class LogSync:
    """Call ``begin`` when the file was checked, ``end`` when everything is in the main file. ``sync`` runs in a thread."""

    def __init__(self, directory: Path, log_path: Path, clock: Clock, fdatasync: Callable[[int], None]) -> None:
        self.waits = True  #: every answer waits for a sync
        self._journal_next = 0  #: at the last commit
        self._journaled = False  #: the last commit wrote to the journal
        self._frames = 0  #: pages in the log
        self._salts: bytes | None = None  #: its generation; None: not read yet
        self._directory = directory
        self._log_path = log_path
        self._clock = clock
        self._fdatasync = fdatasync
        self._fd = -1
        self._mark: MarkFile | None = None
        self._alarm: Alarm | None = None

    def begin(self, db: apsw.Connection, identity: str, journal_next: int) -> None:
        """Move the log into the main file, record the position of the store, and mark the file as in use.

        Another program that reads the file may prevent the move of the log; then the log stays.
        """
        self._fd = os.open(self._log_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            position = self._moved(db, journal_next)
        except apsw.FullError:
            log.warning("the disk is full: the log cannot be moved into penstock.db, and is used as it is")
            position = self._not_moved(journal_next, wal_check.replayed_frames(db))
        try:
            self._mark = MarkFile.open(self._directory, identity, position)
        except OSError as error:
            log.error("penstock.mark cannot be made: a log that is cut short may go unnoticed", error=str(error))
        else:
            try:
                db.execute("update shutdown set clean = 0 where clean = 1")
            except apsw.FullError:
                log.warning("the disk is full: the file cannot be marked as in use, only penstock.mark records it")
        if position.frames == 0:
            db.set_busy_timeout(0)
            try:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                log.info("another program reads the file: its log is emptied later")
            finally:
                db.set_busy_timeout(5_000)
        self._frames, self._salts = wal_check.replayed_frames(db), None
        self._journal_next, self._journaled = journal_next, False

    def end(self, db: apsw.Connection, journal_next: int) -> bool:
        """Move the log into the main file and mark that as complete. Returns False if another program prevents it."""
        position = self._moved(db, journal_next)
        if self._mark is not None:
            self._mark.write(position)
            self._mark.sync()
        db.execute("update shutdown set clean = 1")
        if position.frames:  # the end of the log: a file that contains it is complete, even if another program moved the log
            self._fdatasync(self._fd)
            return False
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return True

    def close(self) -> None:
        """Close the files."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._mark is not None:
            self._mark.sync()
            self._mark.close()
            self._mark = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def position(self, journal_next: int) -> Position:
        """Return the current position of the store. A sync that begins now covers it."""
        if self._salts is None:
            self._salts = sync_mark.read_salts(self._fd)
        return Position(journal_next, self._clock.now_ms(), self._salts, self._frames, self.waits and self._journaled)

    def log_has(self, frames: int, journal_next: int) -> None:
        """Record, after a commit, the number of pages in the log, and the position of the journal."""
        self._journaled, self._journal_next = journal_next != self._journal_next, journal_next
        if frames <= self._frames:
            self._salts = None
        self._frames = frames

    def log_may_restart(self) -> None:
        """Record that the log was moved: the next commit may begin a new generation of it."""
        self._salts = None

    def sync(self, position: Position) -> None:
        """Make the log durable, then record it in the mark. Raises OSError."""
        self._fdatasync(self._fd)
        if self._mark is not None:
            self._mark.write(position)

    def schedule_mark_sync(self, run: Callable[[Callable[[], None]], object]) -> None:
        """Sync the mark within a second. ``run``: runs that in a thread."""
        if self._alarm is None and self._mark is not None:
            self._alarm = self._clock.call_at(self._clock.steady_ms() + SYNC_EVERY_MS, lambda: self._sync_mark(run))

    def _sync_mark(self, run: Callable[[Callable[[], None]], object]) -> None:
        self._alarm = None
        if self._mark is not None:
            run(self._mark.sync)

    def _moved(self, db: apsw.Connection, journal_next: int) -> Position:
        """Copy the log into the main file; return a position that is on disk: without the log, if all of it was copied."""
        frames, moved = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if moved >= frames:
            return Position(journal_next, self._clock.now_ms(), exact=self.waits)
        return self._not_moved(journal_next, frames)

    def _not_moved(self, journal_next: int, frames: int) -> Position:
        self._fdatasync(self._fd)
        return self.position(journal_next)._replace(frames=frames)
