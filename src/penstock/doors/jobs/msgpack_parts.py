"""Splits a large MessagePack value, so that it can be decoded in steps.

The decoder, which is a library, decodes a value in one step. A value with hundreds of thousands of containers or texts takes
too long for that. So its structure is read first: large containers become nodes, and small values stay together in pieces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Never

from penstock.core import limits
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.time_slices import Steps

#: A piece ends when it has this many bytes. A text is never divided.
PIECE_BYTES: Final = 32_768
#: Number of values per step.
_STEP_VALUES: Final = 4_096
#: This many values that are skipped together take as long as a single one.
_RUN_VALUES: Final = 16
#: Deeper values are refused, as the decoder does.
_LEVELS_MAX: Final = 900
#: Values of one byte, including empty containers.
_SINGLE: Final = re.compile(rb"[\x00-\x80\x90\xa0\xc0\xc2\xc3\xe0-\xff]+")
_FLOAT: Final = 0xCB
_FLOAT_BYTES: Final = 9
_FLOATS: Final = re.compile(rb"(?:\xcb.{8})+", re.DOTALL)
#: How many bytes follow the first one of other values.
_FIXED: Final = {kind: kind - 0xA0 for kind in range(0xA1, 0xC0)} | {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,
}  # fmt: skip
#: The size of the length field of other values: strings, bytes and extensions.
_LENGTHS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_EXTENSIONS: Final = frozenset((0xC7, 0xC8, 0xC9))
#: The size of the item count of containers.
_COUNTS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


class Node:
    """An array or a map.

    ``pieces``: for each its begin, its end, the number of its values, and the large container that follows it.
    """

    __slots__ = ("is_map", "item_at", "left", "piece_at", "pieces", "start", "values")

    def __init__(self, start: int, body: int, left: int, *, is_map: bool) -> None:
        self.start = start
        self.is_map = is_map
        self.left = left  #: values that are still missing; a field of a map counts as two
        self.piece_at = self.item_at = body  #: where the current piece begins, and where its last item begins
        self.values = 0  #: number of values in the current piece
        self.pieces: list[tuple[int, int, int, Node | None]] = []

    def add(self, start: int, end: int, values: int) -> None:
        """Add values. ``start`` and ``end`` are the positions of the last one."""
        self.left -= values
        self.values += values
        if self.is_map and self.values % 2:
            self.item_at = start
        else:
            self.item_at = end
            if end - self.piece_at > PIECE_BYTES:
                self._cut(end, None)

    def add_large(self, node: Node, end: int) -> None:
        """Add a large container. Raises ValueError if it is the key of a map."""
        if self.is_map and not self.values % 2:
            raise ValueError("a container cannot be a key")
        self.left -= 1
        before = self.values - self.is_map
        if before:
            self.pieces.append((self.piece_at, self.item_at, before, None))
        self.pieces.append((self.item_at, node.start, int(self.is_map), node))
        self.piece_at = self.item_at = end
        self.values = 0

    def _cut(self, end: int, node: Node | None) -> None:
        self.pieces.append((self.piece_at, end, self.values, node))
        self.piece_at, self.values = end, 0

    def finish(self, end: int) -> None:
        """End the node: all of its values are added."""
        if self.values:
            self._cut(end, None)


def count_values(head: bytes) -> tuple[int, int, bool] | None:
    """Return the size of a container's head, the number of its values, and whether it is a map; None for other values."""
    kind = head[0]
    if 0x80 <= kind <= 0x9F:
        is_map = kind < 0x90
        return 1, (kind & 0x0F) << is_map, is_map
    size = _COUNTS.get(kind)
    if size is None:
        return None
    is_map = kind >= 0xDE
    return 1 + size, int.from_bytes(head[1 : 1 + size]) << is_map, is_map


def split_steps(frame: bytes) -> Steps[tuple[Node, int]]:
    """Split a container, in steps. Return it, and the number of its values.

    Raises InvalidInput if there are more than ``limits.command_values_max``, ValueError or IndexError if it is invalid.
    """
    found = count_values(frame[:5])
    if found is None:
        raise ValueError("no container")
    place, left, is_map = found
    top = Node(0, place, left, is_map=is_map)
    stack = [top]
    values = 1
    steps = 0
    while True:
        steps += 1
        if steps > _STEP_VALUES:
            steps = 0
            yield
            check_count(values)
        if not top.left:
            top.finish(place)
            stack.pop()
            if not stack:
                break
            inner, top = top, stack[-1]
            if place - inner.start > PIECE_BYTES:
                top.add_large(inner, place)
            else:
                top.add(inner.start, place, 1)
            continue
        found = count_values(frame[place : place + 5])
        if found is not None and found[1]:
            if len(stack) > _LEVELS_MAX:
                raise ValueError("too many levels")
            top = Node(place, place + found[0], found[1], is_map=found[2])
            stack.append(top)
            place += found[0]
            values += 1
            continue
        last, place, count = _skip(frame, place, min(top.left, _STEP_VALUES))
        top.add(last, place, count)
        values += count
        steps += count // _RUN_VALUES
    check_count(values)
    if place != len(frame):
        raise ValueError("the value does not end with the frame")
    return top, values


def _skip(frame: bytes, place: int, most: int) -> tuple[int, int, int]:
    """Skip the values at a position that are not containers with items.

    Return the begin and end of the last one, and the number.

    Raises ValueError or IndexError if there is none.
    """
    run = _SINGLE.match(frame, place, place + most)
    if run is not None:
        return run.end() - 1, run.end(), run.end() - place
    kind = frame[place]
    if kind == _FLOAT:
        run = _FLOATS.match(frame, place, place + most * _FLOAT_BYTES)
        end = place if run is None else run.end()
        return end - _FLOAT_BYTES, end, (end - place) // _FLOAT_BYTES or _fail()
    if kind in _FIXED:
        return place, place + 1 + _FIXED[kind], 1
    if kind in _LENGTHS:
        body = place + 1 + _LENGTHS[kind]
        return place, body + int.from_bytes(frame[place + 1 : body]) + (kind in _EXTENSIONS), 1
    found = count_values(frame[place : place + 5])
    if found is None:
        raise ValueError("no value")
    return place, place + found[0], 1


def _fail() -> Never:
    raise ValueError("a number is truncated")


def check_count(values: int) -> None:
    """Check the number of values in one command. Raises InvalidInput."""
    if values > limits.command_values_max:
        raise InvalidInput(f"Too many values in one command (max {limits.command_values_max})")


def build_steps(frame: bytes, node: Node, decode: Callable[[bytes], Steps[Any]], levels: int) -> Steps[Any]:
    """Build the value of a node, in steps. ``decode`` decodes a piece.

    Containers deeper than the given levels are left empty.
    """
    built: Any = {} if node.is_map else []
    if not levels:
        return built
    for start, end, values, inner in node.pieces:
        text = frame[start:end]
        if inner is None:
            count = values // 2 if node.is_map else values
            part = yield from decode((b"\xdf" if node.is_map else b"\xdd") + count.to_bytes(4) + text)
            if node.is_map:
                built.update(part)
            else:
                built += part
        else:
            key = (yield from decode(text)) if node.is_map else None
            value = yield from build_steps(frame, inner, decode, levels - 1)
            if node.is_map:
                built[key] = value
            else:
                built.append(value)
        yield
    return built
