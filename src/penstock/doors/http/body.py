"""Reading request bodies: size first, then shape, then the contract's own words for what is wrong.

A sound body is decoded in one step into its struct. Only when that fails is it looked at again, field by field, to find the
words the contract has for the mistake, or to forgive what the contract forgives: null for "not given", 5.0 for 5.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from penstock.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.doors.http.request import Request

T = TypeVar("T", bound=msgspec.Struct)

#: Numbers that must be whole; of the others the part behind the point is dropped.
WHOLE_NUMBERS: Final = frozenset({"priority", "maxAttempts", "attempts", "count", "limit", "offset", "every", "repeatEvery"})
_INVALID = "Invalid JSON body"


class Reader(Generic[T]):
    """Reads JSON bodies, or query strings, of one shape."""

    def __init__(self, shape: type[T]) -> None:
        self.shape = shape
        self._decode = msgspec.json.Decoder(shape).decode
        info = inspect.type_info(shape)
        assert isinstance(info, inspect.StructType)
        self._info = info

    async def read(self, req: Request) -> T:
        """Read a body that must be there."""
        return self.parse(await req.body())

    async def read_optional(self, req: Request) -> T:
        """Read a body that may be empty: then everything has its default."""
        body = await req.body()
        return self.parse(body if body.strip() else b"{}")

    def parse(self, body: bytes) -> T:
        """Turn bytes into the shape. Raises InvalidInput in the contract's words."""
        try:
            if not body.isascii():
                body.decode()
            return self._decode(body)
        except msgspec.ValidationError:
            return self._explain(_fields(body, _INVALID), "")
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidInput(_INVALID) from None

    def parse_query(self, req: Request) -> T:
        """Turn a query string into the shape: numbers are read as such, everything else is text."""
        given: dict[str, msgspec.Raw] = {}
        for name, text in req.query().items():
            field = next((each for each in self._info.fields if each.encode_name == name), None)
            if field is None or not text:
                continue
            numeric = any(isinstance(kind, inspect.IntType) for kind in _kinds(field.type))
            given[name] = msgspec.Raw(_number_literal(text) if numeric else msgspec.json.encode(text))
        return self._explain(given, "")

    def _explain(self, given: Mapping[str, msgspec.Raw], where: str) -> T:
        built: T = _build(self._info, given, where)
        return built


def _number_literal(text: str) -> bytes:
    """Return a JSON number for what looks like one, and a JSON string for everything else."""
    try:
        value = float("" if "_" in text else text)  # Python would read 1_0 as 10
    except ValueError:
        return msgspec.json.encode(text)
    if not math.isfinite(value):
        return b"1e999"
    return str(int(value)).encode() if value.is_integer() else repr(value).encode()


def _fields(raw: bytes | msgspec.Raw, otherwise: str) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput(otherwise) from None


def _kinds(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):  # what the OpenAPI document says of it
        kind = kind.type
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _build(info: inspect.StructType, given: Mapping[str, msgspec.Raw], where: str) -> Any:
    """Make a struct from its fields, checked one after the other in the order of the struct."""
    values: dict[str, Any] = {}
    for field in info.fields:
        raw = given.get(field.encode_name)
        kinds = _kinds(field.type)
        takes_anything = any(isinstance(kind, inspect.RawType | inspect.AnyType) for kind in kinds)
        if raw is None or (bytes(raw) == b"null" and not takes_anything):
            if field.required:
                raise InvalidInput(f"{where}{field.encode_name} is required")
            if raw is not None and field.default is msgspec.UNSET:  # a field that tells null from "not given"
                values[field.name] = None
            continue
        values[field.name] = _value(f"{where}{field.encode_name}", field.encode_name, _likely(kinds, raw), raw)
    return info.cls(**values)


def _likely(kinds: tuple[inspect.Type, ...], raw: msgspec.Raw) -> inspect.Type:
    """Return which of several kinds a value is meant to be: the first, unless it is an object or array and one of them is."""
    given = [kind for kind in kinds if not isinstance(kind, inspect.NoneType)]
    nested: dict[bytes, type[inspect.Type]] = {b"{": inspect.StructType, b"[": inspect.ListType}
    wanted = nested.get(bytes(raw)[:1], inspect.Type)
    return next((kind for kind in given if isinstance(kind, wanted)), given[0])


def _value(name: str, key: str, kind: inspect.Type, raw: msgspec.Raw) -> Any:
    if isinstance(kind, inspect.RawType | inspect.AnyType):
        return raw if isinstance(kind, inspect.RawType) else msgspec.json.decode(raw)
    if isinstance(kind, inspect.IntType):
        return _integer(name, key, kind, raw)
    if isinstance(kind, inspect.StrType):
        return _text(name, kind, raw)
    if isinstance(kind, inspect.BoolType):
        if bytes(raw) not in (b"true", b"false"):
            raise InvalidInput(f"{name} must be a boolean")
        return bytes(raw) == b"true"
    if isinstance(kind, inspect.LiteralType):
        text = _text(name, inspect.StrType(), raw)
        if text not in kind.values:
            raise InvalidInput(f"{name} must be one of: {', '.join(map(str, kind.values))}")
        return text
    if isinstance(kind, inspect.ListType):
        return _list(name, key, kind, raw)
    if isinstance(kind, inspect.StructType):
        return _build(kind, _fields(raw, f"{name} must be an object"), f"{name}.")
    if isinstance(kind, inspect.DictType):  # its keys are texts, as all keys in JSON
        items = _fields(raw, f"{name} must be an object")
        return {each: _value(f"{name}.{each}", key, _kinds(kind.value_type)[0], item) for each, item in items.items()}
    raise AssertionError(f"no rule for {kind}")


def _integer(name: str, key: str, kind: inspect.IntType, raw: msgspec.Raw) -> int:
    text = bytes(raw)
    if text[:1] not in b"-0123456789":
        raise InvalidInput(f"{name} must be a number")
    number = float(text) if len(text) > 18 or not text.lstrip(b"-").isdigit() else int(text)
    if not math.isfinite(number):
        raise InvalidInput(f"{name} must be a finite number")
    if number != int(number) and key in WHOLE_NUMBERS:
        raise InvalidInput(f"{name} must be an integer")
    if kind.ge is not None and number < kind.ge:
        raise InvalidInput(f"{name} must be at least {kind.ge}")
    if kind.le is not None and number > kind.le:
        raise InvalidInput(f"{name} must be at most {kind.le}")
    return int(number)


def _text(name: str, kind: inspect.StrType, raw: msgspec.Raw) -> str:
    try:
        text = msgspec.json.decode(raw, type=str)
    except msgspec.DecodeError:
        raise InvalidInput(f"{name} must be a string") from None
    if kind.min_length is not None and len(text) < kind.min_length:
        raise InvalidInput(f"{name} must not be empty")
    if kind.max_length is not None and len(text) > kind.max_length:
        raise InvalidInput(f"{name} must be at most {kind.max_length} characters")
    if kind.pattern is not None and re.search(kind.pattern, text) is None:
        raise InvalidInput(f"{name} contains invalid characters")
    return text


def _list(name: str, key: str, kind: inspect.ListType, raw: msgspec.Raw) -> list[Any]:
    try:
        items = msgspec.json.decode(raw, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        raise InvalidInput(f"{name} must be an array") from None
    if kind.max_length is not None and len(items) > kind.max_length:
        raise InvalidInput(f"{name} must have at most {kind.max_length} items")
    if isinstance(kind.item_type, inspect.StructType):
        return [
            _build(kind.item_type, _fields(item, f"{name}[{index}] must be an object"), f"{name}[{index}]: ")
            for index, item in enumerate(items)
        ]
    item_kinds = _kinds(kind.item_type)
    return [
        None
        if bytes(item) == b"null" and any(isinstance(each, inspect.NoneType) for each in item_kinds)
        else _value(f"{name}[{index}]", key, item_kinds[0], item)
        for index, item in enumerate(items)
    ]
