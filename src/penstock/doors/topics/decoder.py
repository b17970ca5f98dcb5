"""Parses commands in a stream: JSON strings, one after the other, with or without white space in between."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from penstock.core import limits

_WHITE: Final = b" \t\r\n"
#: Common chunks, so that they need not be parsed.
_USUAL: Final = {f'"{word}"'.encode(): word for word in ("INIT", "ACK", "NACK", "BACK")}


class CommandDecoder:
    """Parses bytes as they arrive. ``commands``: the complete ones; ``broken``: the bytes after them are invalid."""

    def __init__(self) -> None:
        self.commands: deque[str] = deque()
        self.broken = False
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Add bytes. After an invalid command, the rest is ignored."""
        usual = None if self._rest else _USUAL.get(data.strip(_WHITE))
        if usual is not None and not self.broken:
            self.commands.append(usual)
            return
        rest = self._rest + data
        at = 0
        while not self.broken:
            while at < len(rest) and rest[at] in _WHITE:
                at += 1
            if at == len(rest):
                break
            end = _end_of_string(rest, at)
            if end is None or end - at > limits.stream_command_bytes_max:
                # Not a string, or an incomplete one. An incomplete one is valid as long as it may become a command.
                self.broken = rest[at] != _QUOTE or len(rest) - at > limits.stream_command_bytes_max
                break
            try:
                self.commands.append(_decode(rest[at:end]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.broken = True
            at = end
        self._rest = b"" if self.broken else rest[at:]


_QUOTE: Final = ord('"')
_ESCAPE: Final = ord("\\")
_decode = msgspec.json.Decoder(str).decode


def _end_of_string(data: bytes, start: int) -> int | None:
    """Return the end of the JSON string that starts at ``start``; None if none starts there, or it is incomplete."""
    if data[start] != _QUOTE:
        return None
    at = start + 1
    while (quote := data.find(b'"', at)) >= 0:
        escape = data.find(b"\\", at, quote)
        if escape < 0:
            return quote + 1
        at = escape + 2
    return None
