"""The frames of the jobs door's TCP protocol: bytes in, messages out, and back. It knows no sockets.

A frame is the length of what follows (four bytes, the highest first) and one MessagePack map. Jobs are stored as JSON, so a
message may hold what JSON can say and nothing else.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from penstock.core import limits
from penstock.core.errors import FrameTooLarge, InvalidInput

HEADER_BYTES: Final = 4
#: A command wraps a payload in a few levels of its own; the payload's own limit is checked where it is taken.
_DEPTH_MAX: Final = limits.payload_depth_max + 8
#: MessagePack decoders of JavaScript turn larger integers into BigInt, which mixes with nothing: such numbers travel as floats.
_INTEGER_MIN: Final = -(2**31)
_INTEGER_MAX: Final = 2**32 - 1
#: Up to here a float is exact.
_EXACT_MAX: Final = 2**53
#: How JavaScript spells ``undefined`` in MessagePack.
_UNDEFINED: Final = 0
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_UNDECODABLE: Final = "Invalid command format"


class Parser:
    """Cuts a stream of bytes into frames.

    ``broken`` says why nothing more can be read from this stream, once that is so: a frame too large is refused as soon as its
    length is known. Nothing is read behind it, unless ``allow`` finds that it may be that large after all.
    """

    def __init__(self, bytes_max: int = limits.frame_bytes_max) -> None:
        self.broken: FrameTooLarge | None = None
        self._bytes_max = bytes_max
        self._buffer = bytearray()

    @property
    def partial(self) -> bool:
        """Tell whether the beginning of a frame is here and its end is not."""
        return bool(self._buffer)

    @property
    def kept(self) -> int:
        """Return how many bytes of the frame that is arriving are here. What it only promises to be costs nothing."""
        return len(self._buffer)

    def allow(self, bytes_max: int) -> list[bytes]:
        """Take larger frames from now on; return those that are complete now."""
        self._bytes_max = bytes_max
        self.broken = None
        return self.receive(b"")

    def receive(self, data: bytes) -> list[bytes]:
        """Take what arrived, and return the frames that are complete now, without their headers."""
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
    return None if code == _UNDEFINED else msgspec.msgpack.Ext(code, bytes(data))


_decode = msgspec.msgpack.Decoder(ext_hook=_ext).decode
_encoder = msgspec.msgpack.Encoder()


def decode(frame: bytes) -> dict[str, Any]:
    """Turn a frame into a message. Raises InvalidInput if it is not one MessagePack map."""
    try:
        message = _decode(frame)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        raise InvalidInput(_UNDECODABLE) from None
    if type(message) is not dict:
        raise InvalidInput(_UNDECODABLE)
    return message


def check(message: dict[str, Any]) -> None:
    """Raise InvalidInput for what JSON cannot say: it could not be stored.

    Whole numbers that a client had to send as floats, because they are large, become whole again.
    """
    level: list[Any] = [message]
    values = 0
    for _ in range(_DEPTH_MAX):
        below: list[Any] = []
        for each in level:
            values += len(each)
            if values > limits.command_values_max:
                raise InvalidInput(f"Too many values in one command (max {limits.command_values_max})")
            if type(each) is dict:
                for key, value in each.items():
                    if type(key) is not str:
                        raise InvalidInput("Map keys must be strings")
                    if type(value) not in _PLAIN:
                        _check_value(each, key, value, below)
            else:
                for index, value in enumerate(each):
                    if type(value) not in _PLAIN:
                        _check_value(each, index, value, below)
        if not below:
            return
        level = below
    raise InvalidInput(f"JSON nested too deeply (max {limits.payload_depth_max} levels)")


def _check_value(container: Any, key: str | int, value: object, below: list[Any]) -> None:
    if isinstance(value, dict | list):
        below.append(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput("NaN and Infinity are not supported: JSON has no such numbers")
        if value.is_integer() and _EXACT_MAX >= abs(value) > -_INTEGER_MIN - 1:
            container[key] = int(value)
    else:
        raise InvalidInput("Binary and extension values are not supported: JSON has no such values")


def encode(reply: dict[str, Any]) -> bytes:
    """Turn a reply into a frame; the reply is used up. One too large for a frame is replaced by an error that says so."""
    _tame(reply)
    frame = bytearray(HEADER_BYTES)
    _encoder.encode_into(reply, frame, HEADER_BYTES)
    size = len(frame) - HEADER_BYTES
    if size > limits.frame_bytes_max:
        refusal = {"ok": False, "error": f"Reply too large: {size} bytes exceeds maximum {limits.frame_bytes_max}"}
        return encode(refusal | ({"reqId": reply["reqId"]} if "reqId" in reply else {}))
    frame[:HEADER_BYTES] = size.to_bytes(HEADER_BYTES)
    return bytes(frame)


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
        return value  # better an integer that is exact than a float that is not
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
