"""Inline commands, as a person types them: words on a line, quoted as in Redis."""

from __future__ import annotations

import re
from typing import Final

from penstock.core.errors import ProtocolError

#: A piece of a word, or the space between words. A closing quote ends its word.
_PIECE: Final = re.compile(
    rb"""(?P<plain>[^\s"']+)
    |"(?P<double>(?:[^"\\]|\\.)*+)"(?=\s|\Z)
    |'(?P<single>(?:[^'\\]|\\'|\\(?!'))*+)'(?=\s|\Z)
    |(?P<space>\s+)""",
    re.DOTALL | re.VERBOSE,
)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split(line: bytes) -> list[bytes]:
    """Return the words of a line. Raises ProtocolError if a quote is not closed, or is not closed at the end of a word."""
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    word: bytes | None = None
    place = 0
    while place < len(line):
        piece = _PIECE.match(line, place)
        if piece is None:
            raise ProtocolError("unbalanced quotes in request")
        place = piece.end()
        kind = piece.lastgroup
        if kind == "space":
            if word is not None:
                words.append(word)
            word = None
            continue
        text = piece[kind or 0]
        if kind == "double":
            text = _ESCAPE.sub(_unescape, text)
        elif kind == "single":
            text = text.replace(b"\\'", b"'")
        word = text if word is None else word + text
    if word is not None:
        words.append(word)
    return words


def _unescape(found: re.Match[bytes]) -> bytes:
    code, letter = found.groups()
    return bytes.fromhex(code.decode("ascii")) if code else _ESCAPED.get(letter, letter)


def is_http(words: list[bytes]) -> bool:
    """Return whether a line is the start of an HTTP request, for example from a web browser."""
    return words[0].upper() in (b"POST", b"HOST:") or (len(words) == 3 and words[2].upper().startswith(b"HTTP/"))
