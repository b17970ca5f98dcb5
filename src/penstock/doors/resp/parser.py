"""Parses a stream of bytes into commands of the Redis protocol. It does no input or output.

A command is an array of bulk strings, or a line of words. A command that is too large is refused when its length is
announced, before any of its bytes are stored.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import ProtocolError
from penstock.doors.resp.inline import is_http, split

if TYPE_CHECKING:
    Command = list[bytes]

_CRLF: Final = b"\r\n"
_ARRAY: Final = ord("*")
_BULK: Final = ord("$")
#: The type, a number and the end of the line. Anything longer is not a valid length.
_HEADER_BYTES_MAX: Final = 24
_BLANKS: Final = re.compile(rb"(?:\r?\n)+")
#: Common lengths, so that they need not be parsed digit by digit.
_LENGTHS: Final = {str(number).encode(): number for number in range(1_024)}


class Bounds:
    """Limits of a command. ``args_max`` counts its name; ``bulk_bytes_max`` is for each argument and each inline line."""

    def __init__(self, args_max: int, bulk_bytes_max: int, *, stranger: bool = False) -> None:
        self.args_max = args_max
        self.bulk_bytes_max = bulk_bytes_max
        self.line_bytes_max = min(bulk_bytes_max, limits.resp_line_bytes_max)
        self.whose = "unauthenticated" if stranger else "invalid"


STRANGERS: Final = Bounds(limits.stranger_args_max, limits.stranger_bulk_bytes_max, stranger=True)
CLIENTS: Final = Bounds(limits.resp_args_max, limits.payload_bytes_max)


class RespParser:
    """Parser of one connection: ``receive`` bytes, ``take`` commands. ``bounds`` may be changed between two commands."""

    def __init__(self, bounds: Bounds = CLIENTS) -> None:
        self.bounds = bounds
        self.kept = 0  #: received bytes that are not part of a command that was taken
        self._data = b""
        self._at = 0  #: position of the next byte in the data
        self._chunks: list[bytes] = []  #: bytes that arrived since
        self._wanted = 0  #: with fewer bytes than this, there is nothing new to parse
        self._words: Command = []  #: the words of the partial command
        self._left = 0  #: words that are missing
        self._room = 0  #: bytes that the missing words may have together
        self._broken: ProtocolError | None = None

    @property
    def partial(self) -> bool:
        """Return whether there is the beginning of a command that was not taken."""
        return self.kept > 0 or self._left > 0

    def receive(self, data: bytes) -> None:
        """Add bytes that arrived. After malformed bytes, nothing is stored."""
        if self._broken is None:
            self._chunks.append(data)
            self.kept += len(data)

    def clear(self) -> None:
        """Discard all bytes."""
        self._data, self._at, self.kept, self._wanted, self._left = b"", 0, 0, 0, 0
        self._chunks.clear()
        self._words = []

    def take(self, count: int) -> list[Command]:
        """Return up to ``count`` complete commands; none if none is complete.

        Raises ProtocolError for malformed or too large input, after all commands in front of it were taken.
        """
        commands: list[Command] = []
        if self._broken is not None:
            raise self._broken
        if self.kept < self._wanted:
            return commands
        if self._chunks:
            self._join()
        try:
            self._read(commands, count)
        except ProtocolError as error:
            self._broken = error
            self.clear()
            if not commands:
                raise
        return commands

    def _join(self) -> None:
        if self._at < len(self._data):
            self._chunks.insert(0, self._data[self._at :])
        self._data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._at = 0
        self._chunks.clear()

    def _read(self, commands: list[Command], count: int) -> None:  # noqa: C901, PLR0912, PLR0915 - no call per word
        data, at, size = self._data, self._at, len(self._data)
        words, left, room = self._words, self._left, self._room
        args_max, bulk_bytes_max, find, length_of = self.bounds.args_max, self.bounds.bulk_bytes_max, data.find, _LENGTHS.get
        wanted = 0  # bytes that the next word or line needs, more than there are; 0: unknown, or there are none
        again, name, args = b"", b"", 0  # the start of the previous command: most pipelines repeat one
        while len(commands) < count:
            if not left:
                if at >= size:
                    break
                if args and data.startswith(again, at):
                    words, left, room = [name], args - 1, limits.body_bytes_max - len(name)
                    at += len(again)
                elif data[at] != _ARRAY:
                    at, wanted = self._read_line(at, commands)
                else:
                    end = find(_CRLF, at + 1, at + _HEADER_BYTES_MAX)
                    left, room = length_of(data[at + 1 : end], 0) if end >= 0 else 0, limits.body_bytes_max
                    if not 0 < left <= args_max:
                        left, wanted = self._read_header(at, end)
                    elif left > limits.resp_few_args:  # the caller decides when there is time for more
                        count = min(count, len(commands) + 1)
                    at, words = at if wanted else end + 2, []
                if wanted:
                    break
                if not left and not words:  # an inline command, or an empty array
                    continue
            while left:
                if at < size and data[at] != _BULK:
                    raise ProtocolError(f"expected '$', got {_shown(data[at])}")
                end = find(_CRLF, at, at + _HEADER_BYTES_MAX)
                if end < 0:
                    wanted = _wanted(size - at, "too big bulk count string")
                    break
                length = length_of(data[at + 1 : end], -1)
                length = length if length >= 0 else _number(data[at + 1 : end], "invalid bulk length")
                if not 0 <= length <= bulk_bytes_max or length > room:
                    fits = 0 <= length <= bulk_bytes_max
                    raise ProtocolError("too big request" if fits else f"{self.bounds.whose} bulk length")
                stop = end + 2 + length
                if stop + 2 > size:
                    wanted = stop + 2 - at
                    break
                if data[stop : stop + 2] != _CRLF:
                    raise ProtocolError("a bulk string is longer than announced")
                words.append(data[end + 2 : stop])
                room -= length
                left -= 1
                at = stop + 2
            if left:
                break
            commands.append(words)
            if len(words) > limits.resp_few_args:
                args = 0
            elif (words[0] != name or len(words) != args) and len(words[0]) <= limits.command_name_chars_max:
                name, args = words[0], len(words)
                again = b"*%d\r\n$%d\r\n%b\r\n" % (args, len(name), name)
            words = []
        self._words, self._left, self._room = words, left, room
        self._keep(at, (wanted or 1) if len(commands) < count else 0)

    def _read_header(self, at: int, end: int) -> tuple[int, int]:
        """Parse an array length that is not in ``_LENGTHS``. Return it, and the bytes wanted if it is incomplete.

        ``end``: the end of the line; below 0: it has not arrived. 0 and negative lengths give 0.
        """
        if end < 0:
            return 0, _wanted(len(self._data) - at, "too big mbulk count string")
        number = _number(self._data[at + 1 : end], "invalid multibulk length")
        if number > self.bounds.args_max:
            raise ProtocolError(f"{self.bounds.whose} multibulk length")
        return max(number, 0), 0

    def _read_line(self, at: int, commands: list[Command]) -> tuple[int, int]:
        """Parse an inline command. Return its end, and the bytes wanted if it is incomplete."""
        data, size = self._data, len(self._data)
        end = data.find(b"\n", at)
        if (size if end < 0 else end) - at > self.bounds.line_bytes_max:
            raise ProtocolError("too big inline request")
        if end < 0:
            return at, size - at + 1
        words = split(data[at:end])
        at = end + 1
        if words:
            _check_line(words, self.bounds)
            commands.append(words)
        elif blanks := _BLANKS.match(data, at):  # many empty lines must cost little time
            at = blanks.end()
        return at, 0

    def _keep(self, at: int, wanted: int) -> None:
        """Keep the bytes from a position on."""
        if at >= len(self._data):
            self._data, self._at, self.kept = b"", 0, 0
        else:
            self._at, self.kept = at, len(self._data) - at
        self._wanted = wanted


def _check_line(words: Command, bounds: Bounds) -> None:
    if len(words) > bounds.args_max:
        raise ProtocolError(f"{bounds.whose} multibulk length")
    if not words[0].isascii() or b"" < words[0][:1] <= b" ":  # for example the first bytes of TLS
        raise ProtocolError("this is not the Redis protocol, or TLS is spoken and not expected here", silent=True)
    if is_http(words):
        raise ProtocolError("this is not an HTTP server", silent=True)


def _wanted(here: int, problem: str) -> int:
    """Return the bytes that a header needs, when ``here`` bytes have arrived. Raises ProtocolError if it is too long."""
    if here >= _HEADER_BYTES_MAX:
        raise ProtocolError(problem)
    return here + 1


def _number(digits: bytes, problem: str) -> int:
    """Parse a length: digits without leading zeros, with an optional minus. Raises ProtocolError."""
    unsigned = digits.removeprefix(b"-")
    if not unsigned.isdigit() or (unsigned[0] == 48 and len(digits) > 1):
        raise ProtocolError(problem)
    return int(digits)


def _shown(byte: int) -> str:
    return repr(chr(byte)) if 32 <= byte < 127 else f"byte {byte}"
