"""The structure of JSON texts: how deeply they are nested, and how many items they have.

One pass over pieces of bounded length finds both, so that a large text can be processed in slices: see core/time_slices. The
texts are valid JSON: the decoder has read them before.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.time_slices import at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec

    from penstock.core.time_slices import Steps

_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b"[]{},"))
#: What each character adds to the depth, as a signed byte.
_CHANGES: Final = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
#: Bytes processed in one step.
_PIECE_BYTES: Final = 32_768
#: Number of rounds that remove pairs of brackets, each at most two levels; most texts are empty after that.
_QUICK_ROUNDS: Final = 4
#: A text up to this length cannot be nested too deeply.
SHALLOW_BYTES: Final = 2 * limits.payload_depth_max


def take_json(raw: msgspec.Raw) -> bytes:
    """Return a JSON value from a body, byte for byte. Raises InvalidInput if it is nested too deeply for readers."""
    value = bytes(raw)
    check_depth(value)
    return value


def check_depth(value: bytes) -> None:
    """Raise InvalidInput for JSON that is nested too deeply. For large values: ``depth_steps``."""
    # Each level takes two bytes, and an opening bracket: with too few of either, the text cannot be nested too deeply.
    if len(value) > SHALLOW_BYTES and value.count(b"[") + value.count(b"{") > limits.payload_depth_max:
        at_once(depth_steps(value))


def depth_steps(value: bytes) -> Steps[None]:
    """Raise InvalidInput for JSON that is nested deeper than ``limits.payload_depth_max``, in steps."""
    if len(value) <= SHALLOW_BYTES or value.count(b"[") + value.count(b"{") <= limits.payload_depth_max:
        return
    depth = 0
    for outside in _outside_strings(value):
        brackets = outside.translate(None, _NOT_BRACKETS)
        left = brackets
        for _ in range(_QUICK_ROUNDS):
            left = left.replace(b"[]", b"").replace(b"{}", b"")
        if _deepest(left, depth) + 2 * _QUICK_ROUNDS > limits.payload_depth_max:
            deepest = _deepest(brackets, depth)
            if deepest > limits.payload_depth_max:
                raise InvalidInput(f"JSON nested too deeply (max {limits.payload_depth_max} levels)")
        depth += left.count(b"[") + left.count(b"{") - left.count(b"]") - left.count(b"}")
        yield


def _deepest(brackets: bytes, depth: int) -> int:
    return max(accumulate(depth_changes(brackets), initial=depth))


def depth_changes(text: bytes) -> memoryview:
    """Return what each character adds to the depth: 1, 0 or -1. The text has no strings."""
    return memoryview(text.translate(_CHANGES)).cast("b")


def count_steps(value: bytes, enough: int) -> Steps[int]:
    """Count the items of a JSON array, or the fields of an object, in steps. Above ``enough`` it may stop counting.

    An empty one counts as 1. If the whole text has few commas, their number is returned: an upper bound.
    """
    items = 1 + value.count(b",")
    if items <= enough:
        return items
    items, depth = 1, 0
    for outside in _outside_strings(value):
        structure = outside.translate(None, _NOT_STRUCTURE)
        if depth:  # brackets that open and close here are inside an item
            for _ in range(_QUICK_ROUNDS):
                structure = _FLAT.sub(b"", structure)
        if depth and not structure.strip(b","):
            items += len(structure) if depth == 1 else 0
        else:
            levels = accumulate(depth_changes(structure), initial=depth)
            items += sum(level == 1 and letter == _COMMA for level, letter in zip(levels, structure, strict=False))
        depth += sum(map(structure.count, _OPENING)) - sum(map(structure.count, _CLOSING))
        if items > enough:
            break
        yield
    return items


#: An array or object that contains no others.
_FLAT: Final = re.compile(rb"\[,*\]|\{,*\}")
_COMMA: Final = ord(",")
_OPENING: Final = (b"[", b"{")
_CLOSING: Final = (b"]", b"}")


def blank_strings(text: bytes) -> bytes:
    """Return a JSON text of the same length, with spaces in place of what is in its strings.

    It begins outside of a string, and may end anywhere.
    """
    if b"\\" in text:
        text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    parts = text.split(b'"')
    parts[1::2] = [b" " * len(each) for each in parts[1::2]]
    return b'"'.join(parts)


def _outside_strings(value: bytes) -> Iterator[bytes]:
    """Return the parts of a JSON text outside of its strings, in pieces."""
    inside = False
    start, size = 0, len(value)
    while start < size:
        piece = value[start : start + _PIECE_BYTES]
        if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = value[start : start + len(piece) + 1]  # the character after a backslash is in the same piece
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b"".join(parts[inside::2]) if len(parts) > 1 else b"" if inside else piece
        inside ^= len(parts) % 2 == 0
