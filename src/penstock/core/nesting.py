"""How deeply JSON may be nested, so that everybody can read it back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.core import limits
from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    import msgspec

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: What is not longer than this cannot be nested too deeply.
SHALLOW_BYTES: Final = 2 * limits.payload_depth_max


def take_json(raw: msgspec.Raw) -> bytes:
    """Take a JSON value out of a body, byte for byte. Raises InvalidInput if it is nested deeper than anybody can read back."""
    value = bytes(raw)
    # Each level takes two bytes, and an opening bracket: as long as there are too few of either, nothing can be too deep.
    if len(value) > SHALLOW_BYTES and value.count(b"[") + value.count(b"{") > limits.payload_depth_max:
        check_depth(value)
    return value


def check_depth(value: bytes) -> None:
    """Raise InvalidInput for JSON that is nested deeper than anybody can read back."""
    if _deeper_than(value, limits.payload_depth_max):
        raise InvalidInput(f"JSON nested too deeply (max {limits.payload_depth_max} levels)")


def _deeper_than(body: bytes, levels: int) -> bool:
    """Tell whether brackets are nested deeper than that, by taking away the innermost pairs level by level."""
    brackets = _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS)
    for _ in range(levels):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return False
    return True
