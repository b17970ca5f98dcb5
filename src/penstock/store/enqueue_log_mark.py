"""The mark of the enqueue buffer's log: the number of the last synced record, stored outside the log.

A shortened log looks like one whose end was torn by a crash. The mark distinguishes them: a torn record was never synced, so
it was never answered. Records that the database has never count as missing, in any state of their files.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import structlog

from penstock.core.errors import StoreIncompatible
from penstock.core.timestamps import to_rfc3339
from penstock.store.sync_mark_file import MARK_NAME, SyncMarkFile, read_note

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger("penstock.wal")

_NOTE = struct.Struct(">36sQQQ")
_ADVICE: Final = (
    "Put back the files *.wal and penstock.mark of the same moment. --accept-loss starts without what is missing. Nothing was "
    "changed."
)
_CAUSES: Final = (
    "The log was cut short or removed (a failing disk, a file system that was repaired, an incomplete copy), or an older copy "
    "of it was put back."
)
_NO_MARK: Final = (
    "penstock.mark is missing or damaged, and the log of the enqueue buffer was not closed: it is unknown whether the log "
    "is complete. Copy penstock.mark along with the other files, or stop the server before you copy them."
)


class LogMark(NamedTuple):
    """The contents of the mark."""

    identity: str  #: of the shard the log is for
    log: int  #: number of the log
    synced: int  #: number of its newest record that is on disk; 0: none, or all of them are stored and the log was closed
    at_ms: int  #: wall clock


class LogMarkFile(SyncMarkFile):
    """The file beside the log."""

    magic = b"PNSTMRKB"

    @classmethod
    def open(cls, directory: Path, mark: LogMark) -> Self:
        """Create the file, or open the existing one; write a mark durably. Raises OSError."""
        file = cls(directory / MARK_NAME)
        file._begin(_pack(mark))
        return file

    def write(self, mark: LogMark) -> None:
        """Record what is on disk. If the mark cannot be written, it stays behind, which is safe, and is logged once."""
        self._note(_pack(mark))


def _pack(mark: LogMark) -> bytes:
    return _NOTE.pack(mark.identity.encode(), mark.log, mark.synced, mark.at_ms)


def read(directory: Path) -> LogMark | None:
    """Read the newest mark of a log's directory; None if no mark can be read."""
    note = read_note(directory / MARK_NAME, LogMarkFile.magic, _NOTE.size)
    if note is None:
        return None
    identity, number, synced, at_ms = _NOTE.unpack(note)
    return LogMark(identity.decode(), number, synced, at_ms)


def check(directory: Path, missing: str | None, *, accept_loss: bool) -> bool:
    """Return True if records are missing and ``accept_loss`` allows that; it is logged. Otherwise raise StoreIncompatible."""
    if missing is None:
        return False
    if not accept_loss:
        raise StoreIncompatible(f"{directory}: {missing} {_ADVICE}")
    log.warning("started with --accept-loss", accepted=missing, directory=str(directory))
    return True


def what_is_missing(mark: LogMark | None, identity: str, has: int, stored: int, *, needs_mark: bool) -> str | None:
    """Return sentences about records that a log has lost, or may have lost; None if it lost none.

    ``identity``: of the shard. ``has``: number of the newest readable record of the mark's log. ``stored``: the number up to
    which the database has that log. ``needs_mark``: there are files of a version that writes a mark.
    """
    if mark is None:
        return _NO_MARK if needs_mark else None
    if not mark.synced:
        return None
    if mark.identity != identity:
        return (
            f"penstock.mark is of the log of another database ({mark.identity[:8]}) than this one ({identity[:8]}). Start with "
            "its own database, so that the answered pushes are stored there, or choose another directory with --data."
        )
    there = max(has, stored)
    if there >= mark.synced:
        return None
    return (
        f"The log of the enqueue buffer is behind what was answered: records {there + 1:,} to {mark.synced:,} are missing, "
        f"which is {mark.synced - there:,} pushes to buffered queues (of one job or several). The files end with record "
        f"{has:,}, the database has the log up to record {stored:,}; the mark is of {to_rfc3339(mark.at_ms)}. {_CAUSES}"
    )
