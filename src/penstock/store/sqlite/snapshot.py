"""Copies a committed point of a file, while other connections read and write it.

One read transaction keeps the point for the duration of the copy, so later writes are not in it. The log cannot restart
before the copy has ended; it grows by the writes meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import apsw

from penstock.core.errors import StorageFull
from penstock.core.limits import MEBIBYTE

if TYPE_CHECKING:
    from pathlib import Path

Progress = Callable[[int, int], None]
"""Called with the number of copied bytes, and the total."""

#: Pages that are copied between two reports of progress.
_STEP_PAGES: Final = 1_024
#: Room on the disk that is left to other programs.
_SPARE_BYTES: Final = 16 * MEBIBYTE


def copy(source: apsw.Connection, target: Path, progress: Progress | None = None) -> None:
    """Copy the committed state into a new file, which is complete without a log and on disk when this returns.

    Raises StorageFull before it begins if the disk has too little room, apsw.Error and OSError if it cannot be read or
    written.
    """
    page_bytes = int(source.pragma("page_size"))
    source.execute("begin")
    try:
        pages = int(source.pragma("page_count"))  # this read starts the transaction
        check_room(target.parent, pages * page_bytes)
        os.close(os.open(target, os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_WRONLY, 0o600))
        db = apsw.Connection(str(target))
        try:
            db.pragma("journal_mode", "off")  # a failed copy is deleted
            db.pragma("synchronous", "off")
            with db.backup("main", source, "main") as backup:
                while not backup.done:
                    backup.step(_STEP_PAGES)
                    if progress is not None:
                        progress((backup.page_count - backup.remaining) * page_bytes, backup.page_count * page_bytes)
        finally:
            db.close()
    finally:
        source.execute("rollback")
    _finish(target)


def _finish(target: Path) -> None:
    """Mark the copy as complete, and sync it to disk."""
    db = apsw.Connection(str(target))
    try:
        db.pragma("journal_mode", "delete")  # no log beside it
        if list(db.execute("select 1 from sqlite_schema where name = 'shutdown'")):
            db.execute("update shutdown set clean = 1")
    finally:
        db.close()
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_room(directory: Path, needed_bytes: int) -> None:
    """Raise StorageFull if a disk has too little room for a copy."""
    usage = os.statvfs(directory)
    free = usage.f_bavail * usage.f_frsize
    if free < needed_bytes + _SPARE_BYTES:
        raise StorageFull(
            f"{directory} has {free // MEBIBYTE:,} MiB free; a copy of the store needs {needed_bytes // MEBIBYTE:,} MiB, and "
            f"{_SPARE_BYTES // MEBIBYTE} MiB stay free. Make room, or choose another disk."
        )
