"""Texts as the server takes them: with what it would refuse cut off or replaced, so that what they are about is not lost."""

from __future__ import annotations

from typing import Final

# The server's limits; a test holds them to those.
ERROR_CHARS_MAX: Final = 65_536
STACK_CHARS_MAX: Final = 65_536  # of all lines together
LOG_CHARS_MAX: Final = 65_536
PROGRESS_CHARS_MAX: Final = 4_096


def sendable(text: str, chars_max: int) -> str:
    r"""Return a text without what is no character (a lone surrogate, NUL), and cut to a length.

    >>> sendable("caf\udce9", 10), sendable("a long story", 6)
    ('caf?', 'a long')
    """
    return text[:chars_max].replace("\x00", "?").encode("utf-8", "replace").decode("utf-8")
