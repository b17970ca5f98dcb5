r"""A server's log of answered pushes: the copy of its enqueue buffer on its own disk.

Records are numbered from 1 without gaps and written one after the other into files of limited size. A record is durable when
its future is done: many that arrive together share one fsync. Records that are stored in the database are deleted, a whole file
at a time. After a crash, the reader finds in the database up to which number the log is stored (see ``wals`` in the database).

A crash may tear the end of the last file: records that are cut off there were never answered. A mark beside the log
(``enqueue_log_mark``) distinguishes that from a shortened log, which stops the start. Damage anywhere else stops it, too.

::

    file    = "PENSTOCK-WAL-2\n"  log's number (8)  shard's identity (36)  records
    record  = length (4)  checksum (4)  number (8)  body

The name of a file is the number of its first record. Files of version 1 have the same form; there was no mark then.
"""

from __future__ import annotations

import asyncio
import errno
import os
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from penstock.core import limits
from penstock.core.errors import OutcomeUnknown, StorageFailed, StorageFull, StoreIncompatible
from penstock.core.ids import random_name
from penstock.store import enqueue_log_mark
from penstock.store.data_directory import DirectoryLock, free_bytes, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.core.clock import Clock

log = structlog.get_logger("penstock.wal")

_MAGIC: Final = b"PENSTOCK-WAL-2\n"
_MAGIC_WITHOUT_MARK: Final = b"PENSTOCK-WAL-1\n"
_HEAD = struct.Struct(">15sQ36s")
_RECORD = struct.Struct(">IIQ")
_UNKNOWN: Final = "The log failed: it may or may not be stored. Pushed again, it may be there twice."
_FULL: Final = "The disk of the enqueue buffer's log is full. Nothing was stored."


class _DiskFull(OSError):
    """Nothing was written, because the disk is full."""


class LogRecord(NamedTuple):
    """One entry of a log."""

    number: int
    body: bytes


class EnqueueLog:
    """Open it with ``open``, then call ``begin``. One process at a time; call ``append`` from one event loop."""

    def __init__(self, directory: Path, identity: str, clock: Clock) -> None:
        self._directory = directory
        self._identity = identity
        self._clock = clock
        self._lock = DirectoryLock(directory)
        self.number = 0  #: of the log; it never changes
        self.last = 0  #: number of the newest record
        self.durable = 0  #: number of the newest record that survives a crash
        self._fd = -1
        self._size = 0
        self._files: list[tuple[Path, int]] = []  #: each full file with the number of its last record
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self.failure: str | None = None
        self._is_sound = False  #: it failed only because the disk was full, and contains only durable records
        self.mark: enqueue_log_mark.LogMark | None = None  #: the mark at the time when the log was opened
        self._mark_file: enqueue_log_mark.LogMarkFile | None = None
        self._mark_synced = 0  #: the record that the mark on disk contains
        self._needs_mark = False  #: there are files of a version that writes a mark
        self._torn: tuple[Path, int] | None = None  #: the last file with records, and where its valid part ends
        self._surplus: list[Path] = []  #: files after it without a record, to be removed

    @classmethod
    def open(cls, directory: Path, identity: str, clock: Clock) -> tuple[EnqueueLog, list[LogRecord]]:
        """Open a log, if there is one; return it with all its records. Nothing is changed before ``begin``.

        ``identity``: of the shard it is for. Raises StoreLocked, StoreIncompatible (it belongs to another shard, or is
        damaged).
        """
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        enqueue_log = cls(directory, identity, clock)
        enqueue_log._lock.acquire()
        try:
            enqueue_log.mark = enqueue_log_mark.read(directory)
            records = list(enqueue_log._read())
        except BaseException:
            enqueue_log._lock.release()
            raise
        enqueue_log.number = enqueue_log.number or random_name()
        enqueue_log.durable = enqueue_log.last
        return enqueue_log, records

    def _read(self) -> Iterator[LogRecord]:
        names = sorted(self._directory.glob("*.wal"))
        filled = [path for path in names if path.stat().st_size > _HEAD.size]
        expected = None
        for path in names:
            is_last = not filled or path >= filled[-1]  # the files after it have no record
            data = path.read_bytes()
            if len(data) < _HEAD.size:
                if not is_last:
                    raise _damaged(path, len(data))
                self._surplus.append(path)  # it was just being created
                expected = expected or int(path.stem)
                continue
            self._read_head(path, data)
            at = _HEAD.size
            if expected is None:
                expected = int(path.stem)
            elif expected != int(path.stem):
                if not is_last or not _is_torn(data, at - 1):
                    raise _damaged(path, at)
                self._surplus.append(path)  # the end of the file before it is missing, which the mark detects
                continue
            while at < len(data):
                record = _record_at(data, at)
                if record is None and is_last and _is_torn(data, at):
                    self._torn = (path, at)
                    break
                if record is None or record.number != expected:
                    raise _damaged(path, at)
                yield record
                expected = record.number + 1
                at += _RECORD.size + len(record.body)
            self.last = expected - 1
            self._files.append((path, self.last))

    def _read_head(self, path: Path, data: bytes) -> None:
        magic, number, identity = _HEAD.unpack_from(data)
        is_ours = magic in (_MAGIC, _MAGIC_WITHOUT_MARK) and identity.decode(errors="replace") == self._identity
        if not is_ours or (self.number and number != self.number):
            raise StoreIncompatible(
                f"{path} is the log of another database. Start with its own database, so that the "
                "answered pushes are stored there, or choose another directory with --data."
            )
        self.number = number
        self._needs_mark = self._needs_mark or magic == _MAGIC

    def missing(self, stored: int) -> str | None:
        """Return a text about answered records that are lost; None if none are.

        ``stored``: the number up to which the database has the log of the mark.
        """
        has = self.last if self.mark is not None and self.mark.log == self.number else 0
        return enqueue_log_mark.what_is_missing(self.mark, self._identity, has, stored, needs_mark=self._needs_mark)

    def check(self, stored: int, *, accept_loss: bool = False) -> bool:
        """Compare the log with its mark. Returns True if records are missing and ``accept_loss`` allows that; this is logged.

        Raises StoreIncompatible if records are missing.
        """
        return enqueue_log_mark.check(self._directory, self.missing(stored), accept_loss=accept_loss)

    def begin(self) -> None:
        """Start to accept records. Raises OSError. On a full disk it accepts none, but its records can be stored."""
        for path in self._surplus:
            path.unlink(missing_ok=True)
        try:
            self._settle_end()
            self._begin_file()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._fail(error, [], is_sound=True)

    def _settle_end(self) -> None:
        """Cut off the torn end, and sync the rest: records that were read may be only in the system's memory."""
        if self._torn is not None:
            path, at = self._torn
            log.warning("the end of the log is incomplete: unreadable records there are cut off", file=path.name)
            os.truncate(path, at)
        for path, _ in self._files[-2:]:  # the last one may have no record yet
            with path.open("rb") as file:
                os.fsync(file.fileno())

    def _begin_file(self) -> None:
        mark = self._mark_at(self.durable)
        if self._mark_file is None:
            self._mark_file = enqueue_log_mark.LogMarkFile.open(self._directory, mark)
        else:
            self._mark_file.write(mark)
        self._use_file(*self._make_file())

    def _mark_at(self, synced: int) -> enqueue_log_mark.LogMark:
        return enqueue_log_mark.LogMark(self._identity, self.number, synced, self._clock.now_ms())

    def sync_mark(self) -> None:
        """Make the mark survive a power cut, if it has changed. Call it about once a second."""
        if self._mark_file is not None and self._mark_synced != self.durable:
            self._mark_synced = self.durable
            self._mark_file.sync()

    def _make_file(self) -> tuple[int, Path]:
        """Create the next file, durably. Until it is used, records are written to the old one."""
        path = self._directory / f"{self.durable + 1:020d}.wal"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _HEAD.pack(_MAGIC, self.number, self._identity.encode()))
            os.fsync(fd)
            sync_directory(self._directory)
        except BaseException:
            os.close(fd)
            raise
        return fd, path

    def _use_file(self, fd: int, path: Path) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size = fd, _HEAD.size
        self._files = [each for each in self._files if each[0] != path]
        self._files.append((path, self.durable))

    def begin_anew(self) -> None:
        """Become a new, empty log: the records of this one are stored, and its numbers were used before."""
        for path in [path for path, _ in self._files] + self._surplus:
            path.unlink(missing_ok=True)
        self._files = []
        self.number = random_name()
        self.last = self.durable = 0
        self._begin_file()

    def append(self, body: bytes) -> tuple[int, asyncio.Future[None]]:
        """Write a record; return its number, and a future that is done when it is durable.

        Raises StorageFailed if the log accepts no records any more. The future raises OutcomeUnknown if writing this record
        failed.
        """
        if self.failure is not None:
            raise StorageFailed(f"The log of the enqueue buffer cannot be written ({self.failure}).")
        loop = asyncio.get_running_loop()
        self.last += 1
        head = _RECORD.pack(len(body), zlib.crc32(self.last.to_bytes(8) + body), self.last)
        durable: asyncio.Future[None] = loop.create_future()
        self._waiting.append((head + body, durable))
        if self._writing is None:
            self._writing = loop.create_task(self._write(), name="penstock-wal")
        return self.last, durable

    async def _write(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                try:
                    await asyncio.to_thread(
                        self._put_and_mark, b"".join([record for record, _ in waiting]), self.durable + len(waiting)
                    )
                except _DiskFull as error:
                    self._fail(error, waiting, is_sound=True)
                    return
                except OSError as error:
                    self._fail(error, waiting)
                    return
                self.durable += len(waiting)
                self._files[-1] = (self._files[-1][0], self.durable)
                for _, durable in waiting:
                    if not durable.done():
                        durable.set_result(None)
                if self._size > limits.enqueue_log_file_bytes:
                    try:
                        self._use_file(*await asyncio.to_thread(self._make_file))
                    except OSError as error:
                        self._fail(error, [], is_sound=error.errno == errno.ENOSPC)
                        return
        finally:
            self._writing = None

    def _fail(self, error: OSError, waiting: list[tuple[bytes, asyncio.Future[None]]], *, is_sound: bool = False) -> None:
        """Accept no records until the next start or, if the log is sound, until there is room.

        If it is not sound, the records that were being written may or may not be in it.
        """
        self.failure, self._is_sound = str(error), is_sound
        log.error("the log of the enqueue buffer cannot be written: pushes are stored directly", error=str(error))
        for _, durable in waiting + self._waiting:
            if not durable.done():
                durable.set_exception(StorageFull(_FULL) if is_sound else OutcomeUnknown(_UNKNOWN))
        self._waiting = []

    def revive(self) -> None:
        """Accept records again after the disk was full, if there is room for a new file now."""
        if self.failure is None or not self._is_sound or self._writing is not None:
            return
        if free_bytes(self._directory) < 2 * limits.enqueue_log_file_bytes:
            return
        self.last = self.durable  # the later ones were refused
        try:
            self._begin_file()
        except OSError:
            return
        self.failure = None
        log.info("the log of the enqueue buffer can be written again")

    def _put_and_mark(self, data: bytes, last: int) -> None:
        """Write and sync records, then record in the mark that they are on disk. ``last``: number of the last of them."""
        self._put(data)
        if self._mark_file is not None:
            self._mark_file.write(self._mark_at(last))

    def _put(self, data: bytes) -> None:
        """Write and sync. Raises OSError; _DiskFull if there was no room, and the file is unchanged."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.ftruncate(self._fd, self._size)
            os.fdatasync(self._fd)
            raise _DiskFull(*error.args) from error
        os.fdatasync(self._fd)
        self._size += len(data)

    def forget(self, number: int) -> None:
        """Delete the records up to a number, because they are stored.

        A file is deleted when all its records are; the last file stays.
        """
        while len(self._files) > 1 and self._files[0][1] <= number:
            path, _ = self._files.pop(0)
            path.unlink(missing_ok=True)

    async def close(self, *, is_stored: bool = False) -> None:
        """Finish pending writes, and close the log. ``is_stored``: no record in it is needed any more."""
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._mark_file is not None:
            if is_stored:  # before the files are deleted: after that their records must not count as missing
                self._mark_file.write(self._mark_at(0))
            self._mark_file.sync()
            self._mark_file.close()
            self._mark_file = None
        if is_stored:
            for path, _ in self._files:
                path.unlink(missing_ok=True)
        self._lock.release()


def _damaged(path: Path, at: int) -> StoreIncompatible:
    return StoreIncompatible(
        f"{path} is damaged at byte {at}, or the file before it was cut short: pushes that were answered cannot be read. "
        "Restore the files from a copy, or move them to another directory and start with --accept-loss. Then "
        "the jobs in them are lost."
    )


def _record_at(data: bytes, at: int) -> LogRecord | None:
    """Read a record; None if it is not valid."""
    if at + _RECORD.size > len(data):
        return None
    length, checksum, number = _RECORD.unpack_from(data, at)
    body = data[at + _RECORD.size : at + _RECORD.size + length]
    if len(body) < length or zlib.crc32(number.to_bytes(8) + body) != checksum:
        return None
    return LogRecord(number, body)


def _is_torn(data: bytes, at: int) -> bool:
    """Return whether no valid record begins after a position: then a crash has cut off the file there."""
    return all(
        _record_at(data, place) is None for place in range(at + 1, min(len(data), at + limits.enqueue_log_search_bytes))
    )
