"""Job ids: one 63-bit integer, spelled in three ways.

::

    bit 62                    22 21    16 15     10 9        0
        ├── time in ms, 41 bits ─┤─ shard ─┤─ node ──┤─ count ──┤

The time counts from 2024-01-01, so ids last until 2093 and sort by age. The shard lets every door find the database of a job
from its id alone. The node differs between servers that share a shard. The count differs between ids of one millisecond.

No id ends in the decimal digit 0. JavaScript's numbers have 17 digits at most, and it writes a longer integer with zeros at its
end. So an id that JavaScript rounded as a number is not a valid id, and cannot name another job.

The integer is the id. ``UUIDv7`` (jobs door) and ``ULID`` (messages door) are other forms of the same integer. Their other bits
are check bits computed from the id, so that a mistyped or foreign UUID is refused, and does not name the job of another
client.
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from typing import Final

EPOCH_MS: Final = 1_704_067_200_000
TIME_SHIFT: Final = 22
SHARD_SHIFT: Final = 16
NODE_SHIFT: Final = 10
SHARDS_MAX: Final = 64
NODES_MAX: Final = 64
COUNT_MAX: Final = 1 << NODE_SHIFT
ID_MAX: Final = (1 << 63) - 1

_LOW_MASK = (1 << TIME_SHIFT) - 1
_MASK_64 = (1 << 64) - 1
_one_word = struct.Struct(">Q")
_two_words = struct.Struct(">QQ")
#: Multiplier that spreads an id over 64 bits; the highest of them depend on all of its bits. Not a secret.
SPREAD = 0x9E3779B97F4A7C15
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CROCKFORD_VALUE = {letter: value for value, letter in enumerate(_CROCKFORD)}


class IdSource:
    """Makes ids that only grow, also when the clock stands still or steps back.

    Use one source per shard and process. ``floor`` is the highest id made before (0 for a new store): the first new id is
    above it, at any time of the clock.
    """

    __slots__ = ("_above", "_count", "_fixed", "_ms")

    def __init__(self, *, shard: int = 0, node: int = 0, floor: int = 0) -> None:
        if not 0 <= shard < SHARDS_MAX or not 0 <= node < NODES_MAX:
            raise ValueError(f"shard must be below {SHARDS_MAX} and node below {NODES_MAX}, got {shard} and {node}")
        self._fixed = shard << SHARD_SHIFT | node << NODE_SHIFT
        self._above = 0
        self._ms = floor >> TIME_SHIFT
        self._count = COUNT_MAX - 1  # the floor's millisecond counts as used up, whatever its count was

    def use(self, *, node: int, floor: int = 0) -> None:
        """Continue as another node, above a floor, because another server uses the old node number."""
        self._fixed = self._fixed >> SHARD_SHIFT << SHARD_SHIFT | node << NODE_SHIFT
        if floor >> TIME_SHIFT > self._ms:
            self._ms, self._count = floor >> TIME_SHIFT, COUNT_MAX - 1

    def next(self, now_ms: int) -> int:
        """Return a fresh id for the given wall-clock time."""
        ms = now_ms - EPOCH_MS
        if ms > self._ms:
            self._ms = ms
            self._count = 0
        elif self._count + 1 < COUNT_MAX:
            self._count += 1
        else:  # the millisecond has no ids left: use the next one
            self._ms += 1
            self._count = 0
        made = self._ms << TIME_SHIFT | self._fixed | self._count
        return made if made % 10 else self.next(now_ms)

    def above(self, now_ms: int) -> int:
        """Return a number above all ids that any source made before a moment. This source does not change."""
        self._above = max(self._above + 1, first_of(now_ms) | self._fixed)
        return self._above

    def take(self, count: int, now_ms: int) -> list[int]:
        """Return several fresh ids, in order."""
        first = self.next(now_ms)
        taken = [first]
        while len(taken) < count:
            room = min(count - len(taken), COUNT_MAX - 1 - self._count)
            last = self.mark()
            taken += [each for each in range(last + 1, last + 1 + room) if each % 10]
            self._count += room
            if len(taken) < count:
                taken.append(self.next(now_ms))
        return taken

    def mark(self) -> int:
        """Return the highest id made so far, which is the floor of the next process."""
        return self._ms << TIME_SHIFT | self._fixed | self._count


def shard_of(job_id: int) -> int:
    """Return the shard in an id."""
    return job_id >> SHARD_SHIFT & SHARDS_MAX - 1


def time_of(job_id: int) -> int:
    """Return the millisecond (since 1970) in which an id was made."""
    return (job_id >> TIME_SHIFT) + EPOCH_MS


def first_of(now_ms: int) -> int:
    """Return the lowest id that could be made in a millisecond (since 1970)."""
    return max(0, now_ms - EPOCH_MS) << TIME_SHIFT


def to_uuid(job_id: int) -> str:
    """Return an id as a UUIDv7.

    >>> to_uuid(377957122049)
    '018cc252-e400-7000-a000-...'
    """
    low = _one_word.pack(1 << 63 | (job_id & 0x3FF) << 52 | (job_id * SPREAD & _MASK_64) >> 12)
    return _uuid_head(job_id >> 10) + low.hex("-", 6)


@lru_cache(maxsize=256)
def _uuid_head(shifted: int) -> str:
    """Return the first half of a UUID, which ids of one millisecond share."""
    high = f"{(shifted >> 12) + EPOCH_MS << 16 | 0x7000 | shifted & 0xFFF:016x}"
    return f"{high[:8]}-{high[8:12]}-{high[12:]}-"


def from_uuid(text: str) -> int | None:
    """Return the id of a UUID, or None if the text is not the UUID of an id."""
    if len(text) != 36:
        return None
    try:
        high, low = _two_words.unpack(bytes.fromhex(text.replace("-", "")))
    except (ValueError, struct.error):
        return None
    job_id = (high >> 16) - EPOCH_MS << TIME_SHIFT | (high & 0xFFF) << 10 | low >> 52 & 0x3FF
    # Formatting it again checks all parts at once: version, variant, dashes, check bits.
    return job_id if 0 < job_id <= ID_MAX and to_uuid(job_id) == text.lower() else None


def to_ulid(job_id: int) -> str:
    """Return an id as a ULID: 26 letters of Crockford's alphabet, in the order of the ids."""
    number = (job_id >> TIME_SHIFT) + EPOCH_MS << 80 | (job_id & _LOW_MASK) << 58 | (job_id * SPREAD & _MASK_64) >> 6
    return to_crockford(number)


def to_crockford(number: int) -> str:
    """Return a number of up to 128 bits as 26 letters, in the order of the numbers."""
    return "".join([_CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5)])


def from_crockford(text: str) -> int | None:
    """Return the number of 26 letters, or None if they are not a number of 128 bits."""
    if len(text) != 26:
        return None
    number = 0
    for letter in text.upper():
        value = _CROCKFORD_VALUE.get(letter)
        if value is None:
            return None
        number = number << 5 | value
    return number if number < 1 << 128 else None


def from_ulid(text: str) -> int | None:
    """Return the id of a ULID, or None if the text is not the ULID of an id."""
    number = from_crockford(text)
    if number is None:
        return None
    job_id = (number >> 80) - EPOCH_MS << TIME_SHIFT | number >> 58 & _LOW_MASK
    return job_id if 0 < job_id <= ID_MAX and to_ulid(job_id) == text.upper() else None


def random_name() -> int:
    """Return a number that no other caller has: 63 random bits."""
    return int.from_bytes(os.urandom(8)) >> 1
