"""Unknown fields of a push: ignored, as the contracts require, but named in a header of the answer.

A body is first decoded strictly, in one pass. Only if that fails, it is decoded again without the restriction and searched
for unknown fields. So a valid body costs nothing extra.
"""

from __future__ import annotations

import contextlib
import difflib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from penstock.core import limits
from penstock.core.time_slices import in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import ApiRequest

T = TypeVar("T")

#: Names what was ignored in a request that was answered successfully.
WARNING_HEADER: Final = "penstock-warning"
#: At most this many fields are named, with at most this many characters of each name.
NAMED_MAX: Final = 5
NAME_CHARS_MAX: Final = 64


#: Strict decoders, which reject unknown fields, by shape.
_strict: Final[dict[type, Callable[[msgspec.Raw], object]]] = {}


class FieldCheck(Generic[T]):
    """Finds fields that bodies of a shape do not have. ``strict``: the same shape, but it forbids unknown fields."""

    def __init__(self, shape: Any, strict: type[T] | Any) -> None:
        self._info = inspect.type_info(shape)
        self._decode: Callable[[bytes], T] = msgspec.json.Decoder(strict).decode
        info = inspect.type_info(strict)
        for each in (info, *(field.type for field in getattr(info, "fields", ()))):
            if isinstance(each, inspect.ListType) and isinstance(each.item_type, inspect.StructType):
                item: type[msgspec.Struct] = each.item_type.cls
                _strict[item.__mro__[1]] = msgspec.json.Decoder(item).decode

    def sound(self, body: bytes) -> T | None:
        """Decode a small body in one step. Return None if it is large or not valid in every respect."""
        if len(body) > limits.small_body_bytes:
            return None
        try:
            if not body.isascii():
                body.decode()
            return self._decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    async def read(self, req: ApiRequest, body: bytes, steps: Steps[T]) -> T:
        """Read a body for which ``sound`` returned None, in steps. The answer then names unknown fields."""
        read = await in_slices(steps)
        if req.warns:
            found = await in_slices(self._find(body))
            if found:
                req.warn(f"Ignored: {'; '.join(found)}")
        return read

    def _find(self, body: bytes) -> Steps[list[str]]:
        """Return the first unknown fields of a decoded body, in steps."""
        found: list[str] = []
        for text in _unknown(self._info, msgspec.Raw(body), ""):
            if text is not None:
                found.append(text)
            if len(found) == NAMED_MAX:
                break
            yield
        return found


def _unknown(kind: inspect.Type, raw: msgspec.Raw, where: str) -> Iterator[str | None]:
    """Find the fields of a value that its type does not have. Yields None while none is found."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for each in kinds:
        if isinstance(each, inspect.StructType):
            yield from _unknown_of_struct(each, raw, where)
        elif isinstance(each, inspect.ListType) and isinstance(each.item_type, inspect.StructType):
            is_known = _strict.get(each.item_type.cls)
            for index, item in enumerate(_items(raw)):
                yield None
                if is_known is not None:
                    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                        is_known(item)
                        continue
                yield from _unknown_of_struct(each.item_type, item, f"{where}[{index}].")


def _unknown_of_struct(kind: inspect.StructType, raw: msgspec.Raw, where: str) -> Iterator[str | None]:
    try:
        given = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):  # the value may be of another type of a union
        return
    known = {field.encode_name: field for field in kind.fields}
    for name, value in given.items():
        if name in known:
            yield from _unknown(known[name].type, value, f"{where}{name}" if _is_list(value) else f"{where}{name}.")
        else:
            close = _closest(name[:NAME_CHARS_MAX], kind.cls)
            yield _shown(f"{where}{name[:NAME_CHARS_MAX]}") + (f" (did you mean {close}?)" if close else "")


@lru_cache(maxsize=256)  # the search takes long, and a client sends the same fields repeatedly
def _closest(name: str, shape: type[msgspec.Struct]) -> str:
    """Return the field whose name is most similar; empty if none is similar."""
    close = difflib.get_close_matches(name, [field.encode_name for field in msgspec.structs.fields(shape)], 1)
    return close[0] if close else ""


def _items(raw: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return msgspec.json.decode(raw, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError):
        return []


def _is_list(raw: msgspec.Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"["


def _shown(name: str) -> str:
    """Return a name in a form that is valid in a header."""
    return "".join(letter if "!" <= letter <= "~" and letter not in ';,"' else "?" for letter in name)
