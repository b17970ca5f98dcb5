"""The mark of the last synced commit: the last position on disk, stored outside the write-ahead log.

SQLite cannot distinguish a log that was shortened, or left behind when the file was copied, from one that never had more. So
two records contain the last position of the store:

* ``penstock.mark`` beside the file. After each fsync of the log it gets the position that this fsync covered: the number of the
  next event of the journal, and the log's generation and length. It is written by the same thread (see ``sync_mark_file``). The
  mark itself is fsynced once a second.
* ``shutdown.clean`` in the file. It is 0 while a server uses the file, and 1 once everything is in it. A file with 0 is
  not complete without its log.

The mark is always a lower bound: it is written after its fsync. So an old mark (the power was cut before the mark was
fsynced) never prevents the start of a sound store. After a crash of the process the mark is exact. After a power cut it may
lack the last second. With durability ``interval`` and ``never`` it covers what was synced, which is all that these promise.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import structlog

from penstock.core.errors import StoreIncompatible
from penstock.core.timestamps import to_rfc3339
from penstock.store.sync_mark_file import MARK_NAME, SyncMarkFile, read_note

if TYPE_CHECKING:
    from pathlib import Path

    import apsw

log = structlog.get_logger("penstock.store")

_NOTE = struct.Struct(">32sQ8sQQ?")
_SALTS: Final = (16, 8)  #: where the header of a log has the values that differ between its generations
#: A log that is empty, or not needed, because all of it is in the main file.
NO_SALTS: Final = bytes(8)

_ADVICE: Final = (
    "Put back penstock.db, penstock.db-wal and penstock.mark of the same moment, or restore a backup with: penstock restore. "
    "--accept-loss starts without what is missing. Nothing was changed."
)


class Position(NamedTuple):
    """The last position of a store."""

    journal_next: int  #: number of the next event of the journal
    at_ms: int  #: wall clock
    salts: bytes = NO_SALTS  #: generation of the log
    frames: int = 0  #: pages in the log; 0: everything is in the main file
    #: All answered changes are in a file that contains ``journal_next``: every answer waits for a sync (durability
    #: ``always``), and the last commit wrote to the journal.
    exact: bool = False


class Mark(NamedTuple):
    """The contents of the mark."""

    identity: str  #: of the store
    position: Position


class LogState(NamedTuple):
    """The state of the file and its log at a start. ``log_bytes``: None if there is no log."""

    identity: str  #: empty: created before stores had an identity, or a new file
    clean: bool | None  #: None: created before files had this flag
    position: Position
    log_bytes: int | None
    #: The main file is sound, and the machine was not restarted. Computed only if it is in use and its log is missing or
    #: empty.
    whole: bool = False


class MarkFile(SyncMarkFile):
    """The file beside the database."""

    magic = b"PNSTMRK2"

    def __init__(self, path: Path, identity: str) -> None:
        super().__init__(path)
        self._identity = identity.encode()

    @classmethod
    def open(cls, directory: Path, identity: str, position: Position) -> Self:
        """Create the file, or open the existing one; write a position durably. Raises OSError."""
        mark = cls(directory / MARK_NAME, identity)
        mark._begin(mark._pack(position))
        return mark

    def write(self, position: Position) -> None:
        """Record a position that is on disk.

        If the mark cannot be written, it stays behind, which is safe, and is logged once.
        """
        self._note(self._pack(position))

    def _pack(self, position: Position) -> bytes:
        journal_next, at_ms, salts, frames, exact = position
        return _NOTE.pack(self._identity, journal_next, salts, frames, at_ms, exact)


def read(directory: Path) -> Mark | None:
    """Read the newest mark of a data directory; None if no mark can be read."""
    note = read_note(directory / MARK_NAME, MarkFile.magic, _NOTE.size)
    if note is None:
        return None
    identity, journal_next, salts, frames, at_ms, exact = _NOTE.unpack(note)
    return Mark(identity.decode(), Position(journal_next, at_ms, salts, frames, exact))


def read_salts(fd: int) -> bytes:
    """Return the generation of an open log."""
    length, offset = _SALTS[1], _SALTS[0]
    return os.pread(fd, length, offset).ljust(length, b"\0")


def salts_of(log_path: Path) -> bytes:
    """Return the generation of a log; NO_SALTS if there is none."""
    try:
        fd = os.open(log_path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return NO_SALTS
    try:
        return read_salts(fd)
    finally:
        os.close(fd)


def read_log_state(
    db: apsw.Connection, log_bytes: int | None, salts: bytes, frames: int, *, same_boot: bool = False
) -> LogState:
    """Read the position in a file. ``frames``: pages that SQLite has replayed from the log.

    ``same_boot``: the machine has not been restarted since, so that the mark is exact.
    """
    tables = {name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")}
    identity, clean, journal_next, at_ms = "", None, 1, 0
    if "history" in tables:
        identity = str(db.execute("select identity from history").get or "")
    if "shutdown" in tables:
        clean = bool(db.execute("select clean from shutdown").get)
    if "journal" in tables:
        last = next(iter(db.execute("select seq + count, at from journal order by seq desc limit 1")), None)
        journal_next, at_ms = last or (1, 0)
    whole = (
        same_boot
        and clean is False
        and not log_bytes
        and [text for (text,) in db.execute("pragma integrity_check(1)")] == ["ok"]
    )
    return LogState(identity, clean, Position(journal_next, at_ms, salts, frames), log_bytes, whole)


def check(directory: Path, mark: Mark | None, found: LogState, *, accept_loss: bool) -> bool:
    """Compare a store with its mark. Returns True if data is missing and ``accept_loss`` allows that; it is logged.

    Raises StoreIncompatible if data is missing.
    """
    missing = what_is_missing(mark, found)
    if missing is None:
        if found.clean is False and not found.log_bytes and mark is not None and mark.position.frames:
            log.warning("another program has moved the log into the data file; nothing is missing", directory=str(directory))
        return False
    if not accept_loss:
        raise StoreIncompatible(f"{directory}: {missing} {_ADVICE}")
    log.warning("started with --accept-loss", accepted=missing, directory=str(directory))
    return True


def what_is_missing(mark: Mark | None, found: LogState) -> str | None:
    """Return sentences about data that a store has lost, or may have lost; None if it lost none."""
    in_use = found.clean is False
    has_all = (
        mark is not None and mark.identity == found.identity and mark.position.journal_next <= found.position.journal_next
    )
    # A program that opens the file after a crash, such as sqlite3, moves the log into it and removes the log.
    moved = found.whole and has_all and mark is not None and mark.position.exact
    if in_use and found.log_bytes is None and not moved:
        return (
            "penstock.db was copied or moved without its log penstock.db-wal, while a server used it or after a crash. What "
            f"was in the log is missing{_how_much(mark, found)}."
        )
    if mark is None:
        return None if not in_use else _NO_MARK
    if mark.identity != found.identity:
        return (
            f"penstock.mark is of another store ({mark.identity[:8]}) than penstock.db ({found.identity[:8] or 'unknown'}): "
            "penstock.db was replaced or is lost."
        )
    recorded, has = mark.position, found.position
    if has.journal_next < recorded.journal_next:
        return f"The store is behind what was answered{_how_much(mark, found)}. {_CAUSES}"
    if in_use and recorded.frames and not found.log_bytes and not moved:
        return f"The log penstock.db-wal is empty, but {recorded.frames:,} pages of it were on disk. {_CAUSES}"
    if in_use and recorded.frames and has.salts == recorded.salts and has.frames < recorded.frames:
        pages = recorded.frames - has.frames
        return (
            f"The log penstock.db-wal has lost its last {pages:,} pages. No event of a job is missing, but other changes are: "
            f"settings of queues, crons, webhooks, keys, or staged writes. {_CAUSES}"
        )
    return None


_CAUSES: Final = (
    "The log was cut short (a failing disk, a file system that was repaired, an incomplete copy), or an older copy of a file "
    "was put back."
)
_NO_MARK: Final = (
    "penstock.mark is missing or damaged, and the store was not closed: it is unknown whether the log penstock.db-wal is "
    "complete. Copy penstock.mark along with the other files, or stop the server before you copy them."
)


def _how_much(mark: Mark | None, found: LogState) -> str:
    if mark is None or mark.identity != found.identity or mark.position.journal_next <= found.position.journal_next:
        return ""
    recorded, has = mark.position, found.position
    ends = f" of {to_rfc3339(has.at_ms)}" if has.at_ms else ""
    return (
        f": events {has.journal_next:,} to {recorded.journal_next - 1:,} of the journal are missing, which is "
        f"{recorded.journal_next - has.journal_next:,} steps of jobs (pushes, deliveries, acknowledgements). The store ends "
        f"with event {has.journal_next - 1:,}{ends}; its mark is of {to_rfc3339(recorded.at_ms)}"
    )
