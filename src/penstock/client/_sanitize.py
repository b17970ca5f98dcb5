"""Make texts acceptable to the server: characters and lengths that it would refuse are replaced or cut off."""

from __future__ import annotations

from typing import Final

# The server's limits; a test compares the two.
ERROR_CHARS_MAX: Final = 65_536
STACK_CHARS_MAX: Final = 65_536  # of all lines together
LOG_CHARS_MAX: Final = 65_536
PROGRESS_CHARS_MAX: Final = 4_096


def sendable(text: str, chars_max: int) -> str:
    r"""Return a text without invalid characters (lone surrogates, NUL), cut to a length.

    >>> sendable("caf\udce9", 10), sendable("a long story", 6)
    ('caf?', 'a long')
    """
    return text[:chars_max].replace("\x00", "?").encode("utf-8", "replace").decode("utf-8")
