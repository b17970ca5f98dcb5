"""Parses the arguments of a command. An error names the argument."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence


def text(word: bytes, what: str, chars_max: int = limits.key_chars_max) -> str:
    """Parse a name of 1 to ``chars_max`` characters in UTF-8, without NUL. Raises InvalidInput."""
    try:
        decoded = word.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{what} must be UTF-8") from None
    if not 0 < len(decoded) <= chars_max or "\0" in decoded:
        raise InvalidInput(f"{what} must have 1 to {chars_max} characters, without NUL")
    return decoded


def whole(word: bytes, what: str, low: int, high: int) -> int:
    """Parse a whole number. Raises InvalidInput."""
    digits = word.removeprefix(b"-")
    number = int(word) if digits.isdigit() and len(digits) <= 20 else low - 1
    if not low <= number <= high:
        raise InvalidInput(f"{what} must be a whole number from {low} to {high}")
    return number


def options(words: Sequence[bytes], known: Sequence[bytes], flags: Sequence[bytes] = ()) -> dict[bytes, bytes]:
    """Parse options in any order, each at most once: names with a value, and ``flags`` without one.

    Raises InvalidInput.
    """
    found: dict[bytes, bytes] = {}
    place = 0
    while place < len(words):
        name = words[place].upper()
        step = 1 if name in flags else 2
        if (step == 2 and name not in known) or name in found or place + step > len(words):
            expected = ", ".join([f"{each.decode()} with a value" for each in known] + [each.decode() for each in flags])
            raise InvalidInput(f"syntax error near '{shown(words[place])}': expected {expected}, each once at most")
        found[name] = words[place + step - 1]
        place += step
    return found


def shown(word: bytes) -> str:
    """Return an argument as text for an error message, whatever bytes it has."""
    return word[: limits.command_name_chars_max].decode("utf-8", "replace")
