"""Reading request bodies: check the size, then decode, then report errors in the words of the contract.

A small, valid body is decoded in one step into its struct. Only if that fails, the body is read again, field by field, to
find the contract's error text, or to accept what the contract accepts: null for a missing field, 5.0 for 5.

This second reading, and that of large bodies, is done in slices (core/time_slices), item by item. A valid item is decoded in
one step; only an invalid item is examined further.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from penstock.core import limits
from penstock.core.errors import InvalidInput
from penstock.core.json_depth import count_steps
from penstock.core.time_slices import at_once, in_slices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.time_slices import Steps
    from penstock.doors.http.request import ApiRequest

T = TypeVar("T", bound=msgspec.Struct)

#: Numbers that must be whole. Other integer fields drop the fraction.
WHOLE_NUMBERS: Final = frozenset({"priority", "maxAttempts", "attempts", "count", "limit", "offset", "every", "repeatEvery"})
_INVALID = "Invalid JSON body"


class BodyReader(Generic[T]):
    """Reads JSON bodies, or query strings, of one shape."""

    def __init__(self, shape: type[T]) -> None:
        self.shape = shape
        self._decode = msgspec.json.Decoder(shape).decode
        info = inspect.type_info(shape)
        assert isinstance(info, inspect.StructType)
        self._info = info
        self._is_optional = not any(field.required for field in info.fields)

    async def read(self, req: ApiRequest) -> T:
        """Read a required body."""
        body = await req.body()
        sound = self.sound(body)
        return await in_slices(self.steps(body)) if sound is None else sound

    async def read_optional(self, req: ApiRequest) -> T:
        """Read a body that may be empty: then every field has its default."""
        body = await req.body()
        if not body.strip():
            body = b"{}"
        sound = self.sound(body)
        return await in_slices(self.steps(body)) if sound is None else sound

    async def take(self, body: bytes) -> T:
        """Decode bytes into the shape, in slices if that takes long. Raises InvalidInput with the contract's text."""
        sound = self.sound(body)
        return await in_slices(self.steps(body)) if sound is None else sound

    def sound(self, body: bytes) -> T | None:
        """Decode a small body into the shape, in one step. Return None if it is large, or must be read field by field.

        Raises InvalidInput. This is not a coroutine, because nearly all requests need only this step.
        """
        if len(body) > limits.small_body_bytes:
            return None
        try:
            if not body.isascii():
                body.decode()
            return self._decode(body)
        except msgspec.ValidationError:
            return None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            raise InvalidInput(_INVALID) from None

    def parse(self, body: bytes) -> T:
        """Decode bytes that are known to be few into the shape. Raises InvalidInput with the contract's text."""
        sound = self.sound(body)
        return at_once(self.steps(body)) if sound is None else sound

    def steps(self, body: bytes, flawed: Callable[[str, msgspec.Raw], None] | None = None) -> Steps[T]:
        """Decode bytes into the shape, in steps. Raises InvalidInput with the contract's text.

        ``flawed`` is called with the place and the text of each item that could not be decoded in one step.
        """
        yield from check_text(body, _INVALID)
        fields = yield from _fields(body, _INVALID)
        built: T = yield from _build(self._info, fields, "", flawed)
        return built

    def parse_query(self, req: ApiRequest) -> T:
        """Decode a query string into the shape: numbers are read as numbers, everything else is text."""
        query = req.query()
        if not query and self._is_optional:
            return self._decode(b"{}")
        given: dict[str, msgspec.Raw] = {}
        for name, text in query.items():
            field = next((each for each in self._info.fields if each.encode_name == name), None)
            if field is None or not text:
                continue
            numeric = any(isinstance(kind, inspect.IntType) for kind in _kinds(field.type))
            given[name] = msgspec.Raw(_number_literal(text) if numeric else msgspec.json.encode(text))
        built: T = at_once(_build(self._info, given, "", None))
        return built


def check_text(body: bytes, otherwise: str) -> Steps[None]:
    """Raise InvalidInput unless a body is UTF-8 and has valid JSON syntax, in steps."""
    try:
        if not body.isascii():
            body.decode()
            yield
        _check_syntax(body)
        yield
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise InvalidInput(otherwise) from None


_check_syntax: Final = msgspec.json.Decoder(msgspec.Raw).decode
_decode_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


@lru_cache(maxsize=1_024)
def decoder_of(shape: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Return the JSON decoder of a shape."""
    return msgspec.json.Decoder(shape).decode


def items_steps(raw: bytes | msgspec.Raw, most: int) -> Steps[list[msgspec.Raw] | None]:
    """Split a JSON array into its items, in steps. Return None if it has more than ``most`` items.

    Raises msgspec.ValidationError.
    """
    if len(memoryview(raw)) > limits.small_body_bytes:
        text = bytes(raw)
        if (yield from count_steps(text, max(most, _FEW))) > max(most, _FEW):
            if text.lstrip()[:1] != b"[":
                raise msgspec.ValidationError("Expected `array`")
            return None
    items = _decode_items(raw)
    return items if len(items) <= most else None


def item_shape(shape: Any) -> Any:
    """Return the shape of the items, for a shape that is an array or may be one; else None."""
    kinds = _kinds(inspect.type_info(shape))
    found = next((each for each in kinds if isinstance(each, inspect.ListType)), None)
    return found.item_type.cls if found is not None and isinstance(found.item_type, inspect.StructType) else None


def sound_steps(body: bytes, decode: Callable[[bytes], Any], item: Any) -> Steps[Any]:
    """Decode a body without correcting it, in steps: a large array item by item. ``item``: the shape of its items.

    Raises msgspec.DecodeError, which names the place of the mistake, or InvalidInput for too many items.
    """
    if len(body) <= limits.small_body_bytes or item is None or body.lstrip()[:1] != b"[":
        return decode(body)
    _check_syntax(body)
    yield
    items = yield from items_steps(body, limits.bulk_jobs_max)
    if items is None:
        raise InvalidInput(f"Too many items (max {limits.bulk_jobs_max}). Send them in several requests.")
    built = []
    decode_item = decoder_of(item)
    for index, each in enumerate(items):
        try:
            built.append(decode_item(each))
        except msgspec.ValidationError as error:
            text, at, place = str(error).partition(" - at `$")
            raise msgspec.ValidationError(f"{text} - at `$[{index}]{place if at else '`'}") from None
        yield
    return built


#: This many values take a negligible time, whatever their limit is.
_FEW: Final = 100_000


def _number_literal(text: str) -> bytes:
    """Return a JSON number for a text that is a number, and a JSON string for every other text."""
    try:
        value = float("" if "_" in text else text)  # Python would read 1_0 as 10
    except ValueError:
        return msgspec.json.encode(text)
    if not math.isfinite(value):
        return b"1e999"
    return str(int(value)).encode() if value.is_integer() else repr(value).encode()


def _fields(raw: bytes | msgspec.Raw, otherwise: str) -> Steps[dict[str, msgspec.Raw]]:
    if len(memoryview(raw)) > limits.small_body_bytes:
        count = yield from count_steps(bytes(raw), limits.object_fields_max)
        if count > limits.object_fields_max and bytes(raw).lstrip()[:1] == b"{":
            raise InvalidInput(f"Too many fields in one object (max {limits.object_fields_max})")
    try:
        return _decode_fields(raw)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput(otherwise) from None


def _kinds(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(kind, inspect.Metadata):  # the description for the OpenAPI document
        kind = kind.type
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _build(
    info: inspect.StructType,
    given: Mapping[str, msgspec.Raw],
    where: str,
    flawed: Callable[[str, msgspec.Raw], None] | None,
) -> Steps[Any]:
    """Build a struct from its fields, which are checked in the order of the struct."""
    values: dict[str, Any] = {}
    for field in info.fields:
        raw = given.get(field.encode_name)
        kinds = _kinds(field.type)
        takes_anything = any(isinstance(kind, inspect.RawType | inspect.AnyType) for kind in kinds)
        if raw is None or (not takes_anything and _is_null(raw)):
            if field.required:
                raise InvalidInput(f"{where}{field.encode_name} is required")
            if raw is not None and field.default is msgspec.UNSET:  # a field that distinguishes null from a missing field
                values[field.name] = None
            continue
        name, kind = f"{where}{field.encode_name}", _likely(kinds, raw)
        values[field.name] = yield from _value(name, field.encode_name, kind, raw, flawed)
    return info.cls(**values)


def _is_null(raw: msgspec.Raw) -> bool:
    return len(memoryview(raw)) == _NULL_BYTES and bytes(raw) == b"null"


_NULL_BYTES: Final = 4


def _likely(kinds: tuple[inspect.Type, ...], raw: msgspec.Raw) -> inspect.Type:
    """Return the kind that a value should have: the first, unless it is an object or array and one of the kinds is."""
    given = [kind for kind in kinds if not isinstance(kind, inspect.NoneType)]
    nested: dict[bytes, type[inspect.Type]] = {b"{": inspect.StructType, b"[": inspect.ListType}
    wanted = nested.get(bytes(memoryview(raw)[:1]), inspect.Type)
    return next((kind for kind in given if isinstance(kind, wanted)), given[0])


def _value(
    name: str, key: str, kind: inspect.Type, raw: msgspec.Raw, flawed: Callable[[str, msgspec.Raw], None] | None
) -> Steps[Any]:
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
        return (yield from _list(name, key, kind, raw, flawed))
    if isinstance(kind, inspect.StructType):
        fields = yield from _fields(raw, f"{name} must be an object")
        return (yield from _build(kind, fields, f"{name}.", flawed))
    if isinstance(kind, inspect.DictType):  # its keys are texts, as all keys in JSON
        items = yield from _fields(raw, f"{name} must be an object")
        built = {}
        for each, item in items.items():
            built[each] = yield from _value(f"{name}.{each}", key, _kinds(kind.value_type)[0], item, flawed)
            yield
        return built
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


def _list(
    name: str, key: str, kind: inspect.ListType, raw: msgspec.Raw, flawed: Callable[[str, msgspec.Raw], None] | None
) -> Steps[list[Any]]:
    most = limits.ids_max if kind.max_length is None else kind.max_length
    try:
        items = yield from items_steps(raw, most)
    except msgspec.DecodeError:
        raise InvalidInput(f"{name} must be an array") from None
    if items is None:
        raise InvalidInput(f"{name} must have at most {most} items")
    built: list[Any] = []
    if isinstance(kind.item_type, inspect.StructType):
        decode = decoder_of(kind.item_type.cls)
        for index, item in enumerate(items):
            try:
                built.append(decode(item))
            except msgspec.ValidationError:
                if flawed is not None:
                    flawed(f"{name}[{index}]", item)
                fields = yield from _fields(item, f"{name}[{index}] must be an object")
                built.append((yield from _build(kind.item_type, fields, f"{name}[{index}]: ", flawed)))
            except (msgspec.DecodeError, RecursionError):
                raise InvalidInput(_INVALID) from None
            yield
        return built
    item_kinds = _kinds(kind.item_type)
    takes_null = any(isinstance(each, inspect.NoneType) for each in item_kinds)
    for index, item in enumerate(items):
        is_null = takes_null and _is_null(item)
        built.append(None if is_null else (yield from _value(f"{name}[{index}]", key, item_kinds[0], item, flawed)))
        yield
    return built
