"""Results of jobs: as JSON, or the reason why there is none. A task that worked must not run again because of its result."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.client._plain import encode
from penstock.client._sanitize import sendable

NULL = msgspec.Raw(b"null")
#: A request may have 10 MB; a result needs a little company.
RESULT_BYTES_MAX: Final = 9_900_000
#: The one key of what is stored in place of a result that is missing.
MISSING: Final = "penstock:result_missing"
#: Of the reason, so many characters are kept.
REASON_CHARS_MAX: Final = 1_000


def encoded(result: Any) -> msgspec.Raw:
    """Return a result as JSON; if that cannot be done, the reason why it is missing."""
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
    """Return what is stored in place of a result."""
    return msgspec.Raw(msgspec.json.encode({MISSING: sendable(reason, REASON_CHARS_MAX)}))


def reason_missing(plain: Any) -> str | None:
    """Return why a result is missing, if what is stored says so."""
    reason = plain.get(MISSING) if isinstance(plain, dict) and len(plain) == 1 else None
    return reason if isinstance(reason, str) else None


def is_missing(result: msgspec.Raw) -> bool:
    """Tell whether what is to be stored says that the result is missing."""
    return bytes(result).startswith(f'{{"{MISSING}":'.encode())


def _said(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001, a __str__ may do anything
        return type(error).__name__
