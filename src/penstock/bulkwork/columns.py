"""Builds Arrow columns from values of rows, for jobs and events."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.ids import EPOCH_MS, SPREAD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOMENT: Final = pa.timestamp("us", tz="UTC")
_STORED: Final = pa.timestamp("ms", tz="UTC")
_UUID_CHARS: Final = 36
#: Positions of the 16 digits of each half of a UUID.
_HIGH: Final = (*range(8), *range(9, 13), *range(14, 18))
_LOW: Final = (*range(19, 23), *range(24, 36))


def column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of a type. Most optional columns have only nulls."""
    if values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


def moments(values: Sequence[int | None]) -> pa.Array:
    """Return a column of wall-clock milliseconds."""
    return column(values, _STORED).cast(MOMENT)


def texts(values: Sequence[str | None]) -> pa.Array:
    """Return a column of text."""
    return column(values, pa.string())


def numbers(values: Sequence[int | None]) -> pa.Array:
    """Return a column of small numbers."""
    return column(values, pa.int32())


def named(values: Sequence[int], names: Mapping[int, str]) -> pa.Array:
    """Return a column of text from numbers, which have few distinct values."""
    few = list(set(values))
    if len(few) == 1:
        return pa.repeat(pa.scalar(names[few[0]], pa.string()), len(values))
    places = pc.index_in(pa.array(values, pa.int64()), value_set=pa.array(few, pa.int64()))
    return pa.array([names[each] for each in few], pa.string()).take(places)


def uuids(values: Sequence[int]) -> pa.Array:
    """Format ids as UUIDs; 0 is null. The result is the same as of ``ids.to_uuid``, for whole columns.

    Each half is a column of 64-bit words, formatted in hexadecimal at once. Then each digit's position is filled for all
    rows together.
    """
    count = len(values)
    ids = pa.array(values, pa.uint64())
    time = pc.add(pc.shift_right(ids, _word(22)), _word(EPOCH_MS))
    high = pc.bit_wise_or(
        pc.bit_wise_or(pc.shift_left(time, _word(16)), _word(0x7000)),
        pc.bit_wise_and(pc.shift_right(ids, _word(10)), _word(0xFFF)),
    )
    low = pc.bit_wise_or(
        pc.bit_wise_or(_word(1 << 63), pc.shift_left(pc.bit_wise_and(ids, _word(0x3FF)), _word(52))),
        pc.shift_right(pc.multiply(ids, _word(SPREAD)), _word(12)),
    )
    spelled = bytearray(b"-") * (_UUID_CHARS * count)
    for words, places in ((high, _HIGH), (low, _LOW)):
        digits = _hex(words)
        for digit, place in enumerate(places):
            spelled[place::_UUID_CHARS] = digits[digit::16]
    column = pa.StringArray.from_buffers(count, _every_36(count), pa.py_buffer(bytes(spelled)))
    if 0 in values:
        column = pc.if_else(pc.equal(ids, _word(0)), pa.scalar(None, pa.string()), column)
    return column


def _word(value: int) -> pa.Scalar[Any]:
    return pa.scalar(value, pa.uint64())


def _hex(words: pa.Array) -> bytes:
    """Format words in hexadecimal, 16 digits each."""
    raw = array("Q")
    raw.frombytes(words.buffers()[1])
    raw.byteswap()
    return raw.tobytes()[: 8 * len(words)].hex().encode()


@lru_cache(maxsize=4)
def _every_36(count: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, _UUID_CHARS * (count + 1), _UUID_CHARS)).tobytes())
