"""``python -m tests.fuzz.stream --inputs 1000000``: broken commands of a subscriber's stream, with ``make fuzz``.

Each input is decoded as it is and cut into pieces, and by another decoder of JSON: all must agree.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.doors.topics.decoder import CommandDecoder
from tests.fuzz.campaign import Campaign

if TYPE_CHECKING:
    from tests.fuzz.mutate import Mutator

CORPUS = (
    b'"INIT"',
    b'"INIT"\n"ACK"\n"ACK"\n',
    b'"INIT""ACK""NACK""BACK"',
    b' \t\r\n"DACK 5" "DACK -1"\n"DACK x"',
    b'"\\u0041CK" "\\"quoted\\"" "back\\\\slash"',
    '"ünïcödé ☃ 𝄞" "\\ud834\\udd1e"'.encode(),
    b'"' + b"x" * (limits.stream_command_bytes_max - 2) + b'"',
    b'""' * 30,
)
WORDS = (
    b'"', b'""', b"\\", b'\\"', b"\\u", b"\\ud800", b"\\u0000", b"null", b"123", b"{}", b"[]", b'["ACK"]', b'{"a":"ACK"}',
    b"true", b"\xff\xfe", b"\xed\xa0\x80", b'"ACK"', b"'ACK'", b"//", b"\x00", b"\x0b", b"\xc2\xa0", b"\xef\xbb\xbf",
)  # fmt: skip
_WHITE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def decoded(pieces: list[bytes]) -> tuple[list[str], bool]:
    """Decode an input that arrives in pieces."""
    decoder = CommandDecoder()
    for piece in pieces:
        decoder.feed(piece)
    assert len(decoder._rest) <= limits.stream_command_bytes_max
    return list(decoder.commands), decoder.broken


def expected(data: bytes) -> tuple[list[str], bool]:
    """Decode an input with the standard library."""
    commands: list[str] = []
    at = 0
    while True:
        white = _WHITE.match(data, at)
        assert white is not None
        at = white.end()
        if at == len(data):
            return commands, False
        string = _STRING.match(data, at)
        if string is None:
            return commands, data[at : at + 1] != b'"' or len(data) - at > limits.stream_command_bytes_max
        if string.end() - at > limits.stream_command_bytes_max:
            return commands, True
        try:
            text = json.loads(string[0])
            text.encode()  # half of a pair of surrogates is no text
        except ValueError:
            return commands, True
        commands.append(text)
        at = string.end()


def judge(data: bytes, mutator: Mutator) -> tuple[str, int]:
    """Say what became of an input."""
    commands, broken = whole = decoded([data])
    pieces = mutator.cuts(data)
    assert decoded(pieces) == whole, f"{data!r} in pieces of {[len(piece) for piece in pieces]} bytes"
    assert expected(data) == whole, data
    return "error decoding command" if broken else "complete, or unfinished", len(commands)


CAMPAIGN = Campaign(CORPUS, WORDS, judge)

if __name__ == "__main__":
    CAMPAIGN.main("tests.fuzz.stream", __doc__)
