"""The frames of the jobs door's TCP protocol: from bytes to messages, and back. It does not use sockets.

A frame is the length of what follows (four bytes, the highest first) and one MessagePack map.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.core import limits
from penstock.core.errors import FrameTooLarge, InvalidInput
from penstock.core.time_slices import at_once
from penstock.doors.jobs import jsonable
from penstock.doors.jobs.msgpack_parts import build_steps, split_steps

if TYPE_CHECKING:
    from penstock.core.time_slices import Steps

HEADER_BYTES: Final = 4
#: MessagePack decoders of JavaScript turn larger integers into BigInt, which does not mix with numbers, so these are sent as
#: floats.
_INTEGER_MIN: Final = -(2**31)
_INTEGER_MAX: Final = 2**32 - 1
#: Up to here a float is exact.
_EXACT_MAX: Final = 2**53
#: The MessagePack form of ``undefined`` in JavaScript.
_UNDEFINED: Final = 0
_TIMESTAMP: Final = -1
_UNDECODABLE: Final = "Invalid command format"


class FrameParser:
    """Splits a stream of bytes into frames.

    ``broken`` is the reason why nothing more can be read from this stream, if there is one: a frame that is too large is
    refused as soon as its length is known. Nothing is read behind it, unless ``allow`` raises the limit enough.
    """

    def __init__(self, bytes_max: int = limits.frame_bytes_max) -> None:
        self.broken: FrameTooLarge | None = None
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Return whether a frame has begun to arrive and is not complete."""
        return bool(self._buffer)

    @property
    def kept(self) -> int:
        """Return how many bytes of the arriving frame were received. Announced bytes do not count."""
        return len(self._buffer)

    def allow(self, bytes_max: int) -> list[bytes]:
        """Accept larger frames from now on. Return those that are complete now."""
        self._bytes_max = bytes_max
        self.broken = None
        return self.receive(b"")

    def receive(self, data: bytes) -> list[bytes]:
        """Add received bytes. Return the frames that are complete now, without their headers."""
        frames: list[bytes] = []
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            size = int.from_bytes(buffer[start:body])
            if size > self._bytes_max:
                self.broken = FrameTooLarge(f"Frame too large: {size} bytes exceeds maximum {self._bytes_max}")
                break
            if len(buffer) < body + size:
                break
            frames.append(bytes(buffer[body : body + size]))
            start = body + size
        if start:
            del buffer[:start]
        return frames


def _ext(code: int, data: memoryview) -> object:
    return jsonable.UNDEFINED if code == _UNDEFINED else msgspec.msgpack.Ext(code, bytes(data))


_decode = msgspec.msgpack.Decoder(ext_hook=_ext).decode
_decode_map = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw], ext_hook=_ext).decode
_decode_array = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_encoder = msgspec.msgpack.Encoder()
_BAD_DATE: Final = (ValueError, OverflowError)
_ERRORS: Final = (TypeError, ValueError, IndexError, OverflowError, RecursionError)


#: How many bytes follow the first one of other values.
_FIXED: Final = {kind: kind - 0xA0 for kind in range(0xA1, 0xC0)} | {
    0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,
}  # fmt: skip
#: The size of the length field of other values: strings, bytes and extensions.
_LENGTHS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
_STEP_VALUES: Final = 4_096
#: Headers of arrays.
_ARRAYS: Final = bytes((*range(0x90, 0xA0), 0xDC, 0xDD))
_NOT_ARRAYS: Final = bytes(set(range(256)) - set(_ARRAYS))
#: The size of the item count of a container, by its header.
_COUNTS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
#: This many keys that are arrays take negligible time, whatever their hashes are; a frame of this size has no more.
_FEW_ARRAY_KEYS: Final = 128
_FEW_BYTES: Final = 8 * _FEW_ARRAY_KEYS


def _may_have_array_keys(frame: bytes) -> bool:
    """Return whether a frame may have a map with many keys that are arrays.

    Arrays become tuples, whose hashes are the same in each process. A sender can choose tuples with equal hashes, and each
    is compared with all before it.
    """
    if len(frame) <= _FEW_BYTES or (b"\xde" not in frame and b"\xdf" not in frame):  # only maps of up to 15 keys
        return False
    return len(frame.translate(None, _NOT_ARRAYS)) > _FEW_ARRAY_KEYS


def _key_steps(frame: bytes) -> Steps[None]:
    """Raise InvalidInput for a map with a key that is an array or a map, before any value is built, in steps.

    Invalid MessagePack is refused by the decoder.
    """
    place = steps = 0
    left, maps = [1], [False]  #: for each container around this position: the remaining items, and whether it is a map
    size = len(frame)
    while place < size and left:
        steps += 1
        if not steps % _STEP_VALUES:
            yield
        if not left[-1]:
            left.pop()
            maps.pop()
            continue
        is_key = maps[-1] and not left[-1] % 2
        left[-1] -= 1
        kind = frame[place]
        if kind in _FIXED and kind not in _COUNTS:
            place += 1 + _FIXED[kind]
        elif kind in _LENGTHS:
            start = place + 1 + _LENGTHS[kind]
            place = start + int.from_bytes(frame[place + 1 : start]) + (0xC7 <= kind <= 0xC9)
        elif 0x80 <= kind <= 0x9F or kind in _COUNTS:
            if is_key:
                raise InvalidInput(jsonable.BAD_KEY)
            start = place + 1 + _COUNTS.get(kind, 0)
            items = int.from_bytes(frame[place + 1 : start]) if kind in _COUNTS else kind & 0x0F
            is_map = kind <= 0x8F or kind >= 0xDE
            left.append(2 * items if is_map else items)
            maps.append(is_map)
            place = start
        else:
            place += 1


def decode(frame: bytes) -> dict[str, Any]:
    """Decode a small frame into a message: see ``decode_steps``."""
    return at_once(decode_steps(frame))


def decode_steps(frame: bytes) -> Steps[dict[str, Any]]:
    """Decode a frame into a message, in steps.

    Raises InvalidInput if it is not one MessagePack map, or has too many values.
    """
    if _may_have_array_keys(frame):
        yield from _key_steps(frame)
    try:
        node = None
        if len(frame) > _WHOLE_BYTES:
            node, values = yield from split_steps(frame)
            node = node if values > _WHOLE_VALUES else None
        if node is None:
            message = yield from _decode_piece(frame)
        else:
            message = yield from build_steps(frame, node, _decode_piece, jsonable.LEVELS_MAX)
    except InvalidInput:
        raise
    except _ERRORS:
        raise InvalidInput(_UNDECODABLE) from None
    if type(message) is not dict:
        raise InvalidInput(_UNDECODABLE)
    return message


#: Frames with at most this many bytes, or at most this many values, are decoded in one step.
_WHOLE_BYTES: Final = 131_072
_WHOLE_VALUES: Final = 100_000


def _decode_piece(text: bytes) -> Steps[Any]:
    try:
        return _decode(text)
    except _BAD_DATE:
        return (yield from _PartDecoder(len(text)).decode(text))


#: The whole frame may be decoded this many times, plus this many bytes.
_PART_LEVELS: Final = 16
_PART_DECODER_BYTES: Final = 4_096


class _PartDecoder:
    """Decodes a frame with dates that no ``datetime`` can hold: part by part, down to those dates.

    Each level is decoded again, so the work is limited. Raises ValueError beyond the limit.
    """

    def __init__(self, size: int) -> None:
        self._bytes_left = _PART_LEVELS * size + _PART_DECODER_BYTES

    def decode(self, raw: bytes | msgspec.Raw) -> Steps[Any]:
        """Return the value of a part, in steps."""
        yield
        view = memoryview(raw)
        self._bytes_left -= len(view)
        if self._bytes_left < 0:
            raise ValueError("too much work")
        try:
            return _decode(raw)
        except _BAD_DATE:
            kind = view[0]
            if 0x80 <= kind <= 0x8F or kind in (0xDE, 0xDF):
                fields = {}
                for key, value in _decode_map(raw).items():
                    fields[key] = yield from self.decode(value)
                return fields
            if 0x90 <= kind <= 0x9F or kind in (0xDC, 0xDD):
                items = []
                for value in _decode_array(raw):
                    item = yield from self.decode(value)
                    items.append(item)
                return items
            return jsonable.date_text(_timestamp(bytes(raw)))


def _timestamp(raw: bytes) -> bytes:
    """Return the content of a timestamp. Raises ValueError if it is something else."""
    header = raw[:3] if raw[0] == 0xC7 else raw[:2]
    if header[-1] != _TIMESTAMP % 256 or raw[0] not in (0xC7, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8):
        raise ValueError("no timestamp")
    return raw[len(header) :]


def encode(reply: dict[str, Any]) -> bytes:
    """Encode a reply as a frame. The reply is modified.

    One that is too large for a frame is replaced by an error with this reason.
    """
    _tame(reply)
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(reply, frame, HEADER_BYTES)
    size = len(frame) - HEADER_BYTES
    if size > limits.frame_bytes_max:
        return _too_large(reply, size)
    frame[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES)
    return bytes(frame)


def _too_large(reply: dict[str, Any], size: int) -> bytes:
    error = FrameTooLarge(f"Reply too large: {size} bytes exceeds maximum {limits.frame_bytes_max}")
    refusal = {"ok": False, "error": str(error), "code": error.code}
    return encode(refusal | ({"reqId": reply["reqId"]} if "reqId" in reply else {}))


def encode_steps(reply: dict[str, Any]) -> Steps[list[bytes]]:
    """Encode a reply as a frame like ``encode``, in steps: the items of its lists one by one. Return parts of the frame."""
    parts = [b""]  #: the first is the header
    part = bytearray()
    yield from _pack_map(reply, part, parts, 2)
    parts.append(bytes(part))
    size = sum(map(len, parts))
    if size > limits.frame_bytes_max:
        return [_too_large(reply, size)]
    parts[0] = size.to_bytes(HEADER_BYTES)
    return parts


def _pack_map(fields: dict[str, Any], part: bytearray, parts: list[bytes], levels: int) -> Steps[None]:
    """Add a map to a part of a frame; full parts are added to ``parts``.

    ``levels``: the levels below this map with long lists and maps.
    """
    part += container_head(len(fields), 0x80, 0xDE)
    for key, value in fields.items():
        part += _encoder.encode(key)
        if type(value) is list and len(value) > _FEW_ITEMS:
            part += container_head(len(value), 0x90, 0xDC)
            for item in value:
                part += packed(item)
                if len(part) > _PART_BYTES:
                    parts.append(bytes(part))
                    part.clear()
                yield
        elif type(value) is dict and levels:
            yield from _pack_map(value, part, parts, levels - 1)
        else:
            part += packed(value)
            if len(part) > _PART_BYTES:
                parts.append(bytes(part))
                part.clear()
                yield


def packed(value: Any) -> bytes:
    """Encode a value of a reply. Its containers are modified."""
    box = [value]
    _tame(box)
    return _encoder.encode(box[0])


def container_head(count: int, fixed: int, sized: int) -> bytes:
    """Return the head of a map or an array with this many items."""
    if count < 16:
        return bytes((fixed | count,))
    return bytes((sized,)) + count.to_bytes(2) if count < 65_536 else bytes((sized + 1,)) + count.to_bytes(4)


#: A part of a frame ends when it has this many bytes. An item is never divided.
_PART_BYTES: Final = 262_144
#: Lists that are no longer than this are encoded in one step.
_FEW_ITEMS: Final = 16
#: Likewise, maps.
_FEW_FIELDS: Final = 2_000


class LongReply(dict[str, Any]):
    """A reply that is encoded in steps, whatever it has."""


def is_long(reply: dict[str, Any]) -> bool:
    """Return whether a reply has a long list or a long map, or may have a long list a level below."""
    if type(reply) is LongReply:
        return True
    for value in reply.values():
        if type(value) is list:
            if len(value) > _FEW_ITEMS:
                return True
        elif type(value) is dict and (
            len(value) > _FEW_FIELDS or any(type(each) is list and len(each) > _FEW_ITEMS for each in value.values())
        ):
            return True
    return False


def _tame(container: Any) -> None:
    """Replace the integers that not every client can read."""
    for key, value in container.items() if type(container) is dict else enumerate(container):
        kind = type(value)
        if kind is int:
            if not _INTEGER_MIN <= value <= _INTEGER_MAX:
                container[key] = _number(value)
        elif kind is dict or kind is list:
            _tame(value)


def _number(value: int) -> int | float:
    if abs(value) > _EXACT_MAX and -(2**63) <= value < 2**64:
        return value  # an exact integer is better than a float that is not exact
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
