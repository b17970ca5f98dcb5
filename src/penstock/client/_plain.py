"""Values to and from JSON: types that msgspec supports, and models that dump and validate themselves, such as pydantic's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

#: How deep the search for a part that cannot be encoded goes; the server accepts no more levels.
DEPTH_MAX: Final = 64
_TROUBLES: Final = (TypeError, ValueError, OverflowError, RecursionError)


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value: None means that an option was not given."""
    return {name: value for name, value in fields.items() if value is not None}


def encode(value: object) -> bytes:
    """Return any value as JSON: plain values, dataclasses, msgspec structs, pydantic models, datetimes, UUIDs, and so on.

    Raises TypeError or ValueError that names the part which cannot be encoded, such as ``data.items[3]``.
    """
    try:
        return _encode(value)
    except _TROUBLES as error:
        raise _explained(value, "", error) from None


def to_plain(value: object, name: str) -> Any:
    """Return a value as JSON would read it again. Raises like ``encode``; ``name``: the value's name in errors."""
    try:
        return msgspec.to_builtins(value, enc_hook=_dump)
    except _TROUBLES as error:
        raise _explained(value, name, error) from None


def from_plain(plain: Any, kind: Any) -> Any:
    """Return a value as a type. Raises msgspec.ValidationError for one that does not fit."""
    return msgspec.convert(plain, kind, dec_hook=_load)


def check_kind(kind: Any) -> None:
    """Raise TypeError for a type that values cannot be converted to."""
    msgspec.json.Decoder(kind, dec_hook=_load)


def _dump(value: Any) -> Any:
    if callable(getattr(type(value), "model_dump", None)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise TypeError(f"a {type(value).__qualname__} cannot be encoded as JSON")


_encode: Final = msgspec.json.Encoder(enc_hook=_dump).encode


def _load(kind: type, plain: Any) -> Any:
    if callable(getattr(kind, "model_validate", None)):
        return kind.model_validate(plain)  # type: ignore[attr-defined]
    raise TypeError(f"a {kind.__qualname__} cannot be decoded from JSON")


def _explained(value: object, name: str, error: BaseException) -> Exception:
    """Return an error that names the innermost part which cannot be encoded, and why."""
    for _ in range(DEPTH_MAX):
        found = next(((key, part, why) for key, part in _parts(value) if (why := _why_not(part)) is not None), None)
        if found is None:
            break
        key, value, error = found
        name = f"{name}{key}" if name else key.removeprefix(".")
    reason = str(error) or type(error).__name__
    text = f"{name or 'The value'} cannot be encoded as JSON: {reason}"
    return TypeError(text) if isinstance(error, TypeError) else ValueError(text)


def _why_not(value: object) -> BaseException | None:
    try:
        _encode(value)
    except _TROUBLES as error:
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each with its path from the value."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield (f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"), part
    elif isinstance(value, Sequence | AbstractSet) and not isinstance(value, str | bytes | bytearray):
        for place, part in enumerate(value):
            yield f"[{place}]", part
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield f".{field.name}", getattr(value, field.name)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield f".{name}", getattr(value, name)
