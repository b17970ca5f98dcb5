"""Results of jobs: as JSON, or the reason why there is none. A successful task must not run again because of its result."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.client._plain import encode
from penstock.client._sanitize import sendable

NULL = msgspec.Raw(b"null")
#: A request may have 10 MB; the rest is for the fields around the result.
RESULT_BYTES_MAX: Final = 9_900_000
#: The only key of the value that is stored in place of a missing result.
MISSING: Final = "penstock:result_missing"
#: How many characters of the reason are kept.
REASON_CHARS_MAX: Final = 1_000


def encoded(result: Any) -> msgspec.Raw:
    """Return a result as JSON; if that is not possible, the reason why it is missing."""
    if result is None:
        return NULL
    try:
        plain = encode(result)
    except Exception as error:  # noqa: BLE001, a model may do anything when it is dumped
        return missing(f"The result of type {type(result).__qualname__} was not kept: {_said(error)}")
    if len(plain) > RESULT_BYTES_MAX:
        return missing(
            f"The result was not kept: it has {len(plain)} bytes as JSON, and {RESULT_BYTES_MAX} at most are. "
            "Store it elsewhere, and return where."
        )
    return msgspec.Raw(plain)


def missing(reason: str) -> msgspec.Raw:
    """Return the value that is stored in place of a result."""
    return msgspec.Raw(msgspec.json.encode({MISSING: sendable(reason, REASON_CHARS_MAX)}))


def reason_missing(plain: Any) -> str | None:
    """Return why a result is missing; None if it is not."""
    reason = plain.get(MISSING) if isinstance(plain, dict) and len(plain) == 1 else None
    return reason if isinstance(reason, str) else None


def is_missing(result: msgspec.Raw) -> bool:
    """Return whether a value to be stored marks a missing result."""
    return bytes(result).startswith(f'{{"{MISSING}":'.encode())


def _said(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001, a __str__ may do anything
        return type(error).__name__
