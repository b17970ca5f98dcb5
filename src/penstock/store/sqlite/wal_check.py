"""Detects whether the write-ahead log has lost commits.

SQLite replays its log up to the first frame whose checksum does not match and ignores the rest without an error. That is
right for the torn end after a power cut, whose frames were never acknowledged. It is wrong for a flipped bit in the middle,
because acknowledged commits follow it. The two cases can be distinguished when the machine has not been restarted since the
log was written: then at most the very last commit is torn, and complete commits before that one can only have been lost by
damage.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_LITTLE_ENDIAN, _BIG_ENDIAN = 0x377F0682, 0x377F0683
_MASK_32 = 0xFFFF_FFFF


def lost_commits(db: apsw.Connection, database: Path) -> int:
    """Count the commits behind the point up to which SQLite has replayed the log.

    Call it after the first read of a connection and before its first write. The index beside the log has the same
    information, but closing a file removes all locks that SQLite has on it in this process: the next process that reads the
    data would assume that it is the first, and cut the index off while this process uses it.
    """
    log = database.with_name(database.name + "-wal")
    if not log.exists():
        return 0
    with log.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not any(header):
            return 0
        if not _is_sound(header):
            return 1  # everything behind it is lost, however much that is
        _, _, page_size, _, *salts, _, _ = _HEADER.unpack(header)
        step = _FRAME.size + page_size
        commits = 0
        ends_in_commit = False
        for number in range(replayed_frames(db), (log.stat().st_size - _HEADER.size) // step):
            file.seek(_HEADER.size + number * step)
            _, pages_after_commit, *frame_salts, _, _ = _FRAME.unpack(file.read(_FRAME.size))
            if frame_salts == salts:  # not a frame of an older generation of the log
                ends_in_commit = pages_after_commit > 0
                commits += ends_in_commit
        return commits - ends_in_commit


def _is_sound(header: bytes) -> bool:
    magic, _, page_size, _, _, _, sum_1, sum_2 = _HEADER.unpack(header)
    if magic not in (_LITTLE_ENDIAN, _BIG_ENDIAN) or not 512 <= page_size <= 65_536:
        return False
    words = struct.unpack("<6I" if magic == _LITTLE_ENDIAN else ">6I", header[:24])
    a = b = 0
    for first, second in zip(words[::2], words[1::2], strict=True):
        a = (a + first + b) & _MASK_32
        b = (b + second + a) & _MASK_32
    return (a, b) == (sum_1, sum_2)


def replayed_frames(db: apsw.Connection) -> int:
    """Return the number of valid pages in the log."""
    frames, _ = db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    return max(0, frames)
