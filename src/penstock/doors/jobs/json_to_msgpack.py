"""Converts the JSON of replies to values that the encoder of frames accepts.

The decoder of JSON, which is a library, decodes a text in one step. A payload with hundreds of thousands of values takes too
long for that, so it is converted to MessagePack piece by piece, and never built as a whole.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate, compress, count
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core.json_depth import blank_strings, depth_changes
from penstock.doors.jobs.tcp_frames import container_head, packed

if TYPE_CHECKING:
    from penstock.core.time_slices import Steps

#: Texts with at most this many bytes, or at most this many values, are decoded in one step.
_WHOLE_BYTES: Final = 131_072
_WHOLE_VALUES: Final = 100_000
#: A piece has at most this many bytes, unless it is one text or one number.
_PIECE_BYTES: Final = 32_768

_SPACES: Final = re.compile(rb"[ \t\n\r]*+")
_COMMA: Final = re.compile(rb"[ \t\n\r]*+,?")
_COLON: Final = re.compile(rb"[ \t\n\r]*+:[ \t\n\r]*+")
_WORD: Final = re.compile(rb"[-+.0-9a-zA-Z]++")
_ONLY_COMMAS: Final = bytes(byte == ord(",") for byte in range(256))
_OPENING: Final = b"[{"
_CLOSING: Final = b"]}"
_OBJECT: Final = ord("{")
_QUOTE: Final = ord('"')
#: Heads of containers whose number of items, the last four bytes, is filled in at their ends.
_ARRAY_HEAD: Final = b"\xdd\0\0\0\0"
_MAP_HEAD: Final = b"\xdf\0\0\0\0"

_decode: Final = msgspec.json.Decoder().decode
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def plain(text: bytes) -> Any:
    """Decode a small JSON text. See ``plain_steps``."""
    try:
        return _decode(text)
    except msgspec.MsgspecError:  # a number too large for a float, which HTTP passes on unchanged
        return json.loads(text, parse_int=_integer)


def is_large(text: bytes) -> bool:
    """Return whether decoding a JSON text at once may hold the event loop for too long."""
    return len(text) > _WHOLE_BYTES and text.count(b",") + text.count(b"[") + text.count(b"{") > _WHOLE_VALUES


def plain_steps(text: bytes) -> Steps[Any]:
    """Decode a JSON object of the server, in steps. Fields with very many values become MessagePack, in ``msgspec.Raw``."""
    if not is_large(text):
        return plain(text)
    fields: dict[str, Any] = {}
    for key, value in _decode_fields(text).items():
        part = bytes(value)
        yield
        fields[key] = yield from value_steps(part)
    return fields


def value_steps(text: bytes) -> Steps[Any]:
    """Decode a JSON value, in steps. One with very many values becomes MessagePack, in ``msgspec.Raw``."""
    return msgspec.Raw((yield from _convert_steps(text))) if is_large(text) else plain(text)


class _Window:
    """The next bytes of a container, from the begin of an item on.

    ``end``: where the container ends, if it ends here. ``commas``: the last comma at each depth below the container.
    """

    __slots__ = ("commas", "end")

    def __init__(self, text: bytes, start: int) -> None:
        masked = blank_strings(text[start : start + _PIECE_BYTES])
        depths = list(accumulate(depth_changes(masked)))
        size = depths.index(-1) if -1 in depths else None
        self.end = None if size is None else start + size
        is_comma = masked[:size].translate(_ONLY_COMMAS)
        self.commas = dict(zip(compress(depths, is_comma), compress(count(start), is_comma), strict=True))

    def cut(self, depth: int) -> int:
        """Return up to where there are whole items of the container at this depth; -1 if the next one does not end here."""
        return self.end if self.end is not None and not depth else self.commas.get(depth, -1)


def _convert_steps(text: bytes) -> Steps[bytes]:
    """Convert a valid JSON text to MessagePack, in steps."""
    place = _skip(_SPACES, text, 0)
    if text[place] not in _OPENING:
        return packed(plain(text))
    found = bytearray()
    opened: list[tuple[int, int, bool]] = []  #: the containers around this one: see below
    head, items, is_map = _open(found, text[place])  # where its head is, its number of items, whether it is a map
    place += 1
    window = None
    depth = 0  #: below the container with which the window begins
    while True:
        place = _skip(_SPACES, text, place)
        if text[place] in _CLOSING:
            found[head + 1 : head + len(_MAP_HEAD)] = items.to_bytes(len(_MAP_HEAD) - 1)
            if not opened:
                return bytes(found)
            head, items, is_map = opened.pop()
            place, window = _skip(_COMMA, text, place + 1), None
            continue
        if window is None:
            yield
            window, depth = _Window(text, place), 0
        cut = window.cut(depth)
        if cut > place:
            items += _add_piece(found, text[place:cut], is_map=is_map)
            place, window = _skip(_COMMA, text, cut), None
            continue
        items += 1
        if is_map:
            end = yield from _end_steps(text, place)
            found += packed(plain(text[place:end]))
            place = _skip(_COLON, text, end)
        if text[place] in _OPENING:  # larger than the window: it is divided itself
            opened.append((head, items, is_map))
            head, items, is_map = _open(found, text[place])
            place += 1
            depth += 1
        else:
            end = yield from _end_steps(text, place)
            found += packed(plain(text[place:end]))
            place, window = _skip(_COMMA, text, end), None


def _skip(what: re.Pattern[bytes], text: bytes, place: int) -> int:
    found = what.match(text, place)
    assert found is not None, "the text is valid JSON"
    return found.end()


def _open(found: bytearray, bracket: int) -> tuple[int, int, bool]:
    """Add the head of a container. Return where it is, the number of items so far, and whether it is a map."""
    head, is_map = len(found), bracket == _OBJECT
    found += _MAP_HEAD if is_map else _ARRAY_HEAD
    return head, 0, is_map


def _add_piece(found: bytearray, text: bytes, *, is_map: bool) -> int:
    """Add items of an array, or fields of an object, and return their number."""
    piece = plain(b"{%b}" % text if is_map else b"[%b]" % text)
    head = container_head(len(piece), 0x80, 0xDE) if is_map else container_head(len(piece), 0x90, 0xDC)
    found += memoryview(packed(piece))[len(head) :]
    return len(piece)


def _end_steps(text: bytes, place: int) -> Steps[int]:
    """Return where a string, a number or a word ends, in steps."""
    if text[place] != _QUOTE:
        return _skip(_WORD, text, place)
    place += 1
    while True:
        piece = text[place : place + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = text[place : place + len(piece) + 1]  # the character after a backslash is in the same piece
        end = piece.replace(b"\\\\", b"  ").replace(b'\\"', b"  ").find(b'"')
        if end >= 0:
            return place + end + 1
        place += len(piece)
        yield


def _integer(digits: str) -> int | float:
    """Read a whole number.

    One that 64 bits cannot hold is sent as a float anyway; Python reads no more than 4,300 digits.
    """
    return int(digits) if len(digits) <= _INTEGER_CHARS else float(digits)


_INTEGER_CHARS: Final = 20
