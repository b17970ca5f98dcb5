"""Finds out whether the write-ahead log has lost commits it once had.

SQLite replays its log up to the first frame whose checksum does not match and silently forgets the rest. That is right for
the torn tail of a power cut, whose frames were never acknowledged. It is wrong for a flipped bit in the middle, behind which
acknowledged commits lie. The two can be told apart when the machine has not been restarted since the log was written: then
nothing was torn, and a complete commit behind the end of the replay can only mean damage.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGICS = (0x377F0682, 0x377F0683)
_MAX_FRAME_OFFSET = 16


def lost_commits(database: Path) -> int:
    """Count the complete commits behind the point up to which SQLite has replayed the log. Call it after opening."""
    log, index = database.with_name(database.name + "-wal"), database.with_name(database.name + "-shm")
    if not log.exists() or not index.exists():
        return 0
    size = log.stat().st_size
    with log.open("rb") as file:
        raw = file.read(_HEADER.size)
        if len(raw) < _HEADER.size:
            return 0
        magic, _, page_size, _, salt_1, salt_2, _, _ = _HEADER.unpack(raw)
        if magic not in _MAGICS or not 512 <= page_size <= 65_536:
            return 1 if any(raw) else 0  # the header itself is damaged: everything behind it is lost
        replayed = _replayed_frames(index)
        step = _FRAME.size + page_size
        lost = 0
        for number in range(replayed, (size - _HEADER.size) // step):
            file.seek(_HEADER.size + number * step)
            _, pages_after_commit, frame_salt_1, frame_salt_2, _, _ = _FRAME.unpack(file.read(_FRAME.size))
            if (frame_salt_1, frame_salt_2) != (salt_1, salt_2):
                break  # the remains of an older generation of the log
            lost += pages_after_commit > 0
        return lost


def _replayed_frames(index: Path) -> int:
    with index.open("rb") as file:
        file.seek(_MAX_FRAME_OFFSET)
        (frames,) = struct.unpack("=I", file.read(4))
    return int(frames)
