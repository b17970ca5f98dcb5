"""A small file beside a log that contains how much of the log was on disk, stored outside the log.

Two copies are written in turns, in separate blocks, each with a number and a checksum: after a torn write the previous one
remains. The file has its full size from the beginning, so that a record is one ``pwrite`` of about a microsecond. ``sync``
is called about once a second.

A mark is always a lower bound: it is written after its fsync.
"""

from __future__ import annotations

import ctypes
import os
import struct
import zlib
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from penstock.store.data_directory import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

log = structlog.get_logger("penstock.store")

MARK_NAME: Final = "penstock.mark"
#: How long a mark may be in the system's memory only.
SYNC_EVERY_MS: Final = 1_000
_HEAD = struct.Struct(">8sQ")  #: the kind of the mark, and its number; then follow the record and the checksum
_CHECKSUM = struct.Struct(">I")
_SLOT_BYTES: Final = 4_096
_SLOTS: Final = 2

# A write into the system's memory takes about a microsecond. ``os.pwrite`` releases the interpreter's lock meanwhile, and
# while the event loop is busy the thread waits up to 5 ms to get it back, with every answer of its group. PyDLL keeps the
# lock.
_PWRITE: Final = ctypes.PyDLL(None, use_errno=True).pwrite
_PWRITE.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
_PWRITE.restype = ctypes.c_ssize_t


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write bytes into a file without releasing the interpreter's lock. Raises OSError."""
    if _PWRITE(fd, data, len(data), offset) != len(data):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


class SyncMarkFile:
    """Opened once; written by the thread that syncs the log. ``magic``: 8 bytes that identify the kind of the mark."""

    magic: ClassVar[bytes]

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._serial = 0
        self._failed = False

    def sync(self) -> None:
        """Make the newest record survive a power cut."""
        try:
            self._sync()
        except OSError as error:
            self._complain(error)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin(self, note: bytes) -> None:
        """Create the file, or open the existing one; write a record durably. Raises OSError."""
        self._serial = max((serial for serial, _ in _slots(self._path, self.magic, len(note))), default=0)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, _SLOTS * _SLOT_BYTES)
            self._put(note)
            self._sync()
            sync_directory(self._path.parent)
        except BaseException:
            self.close()
            raise

    def _note(self, note: bytes) -> None:
        """Write a record. If the mark cannot be written, it stays behind, which is safe, and is logged once."""
        try:
            self._put(note)
        except OSError as error:
            self._complain(error)

    def _put(self, note: bytes) -> None:
        self._serial += 1
        record = _HEAD.pack(self.magic, self._serial) + note
        write_at(self._fd, record + _CHECKSUM.pack(zlib.crc32(record)), self._serial % _SLOTS * _SLOT_BYTES)

    def _sync(self) -> None:
        os.fdatasync(self._fd)

    def _complain(self, error: OSError) -> None:
        if not self._failed and self._fd >= 0:
            self._failed = True
            log.error(
                "penstock.mark cannot be written: from now on a log that is cut short may go unnoticed",
                error=str(error),
                directory=str(self._path.parent),
            )


def read_note(path: Path, magic: bytes, size: int) -> bytes | None:
    """Return the newest record of a file; None if no record can be read. ``size``: of a record, in bytes."""
    found = max(_slots(path, magic, size), default=None)
    return None if found is None else found[1]


def _slots(path: Path, magic: bytes, size: int) -> list[tuple[int, bytes]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    found = []
    length = _HEAD.size + size
    for slot in range(_SLOTS):
        at = slot * _SLOT_BYTES
        if len(content) < at + length + _CHECKSUM.size:
            continue
        record = content[at : at + length]
        kind, serial = _HEAD.unpack_from(record)
        (checksum,) = _CHECKSUM.unpack_from(content, at + length)
        if kind == magic and checksum == zlib.crc32(record):
            found.append((serial, record[_HEAD.size :]))
    return found
