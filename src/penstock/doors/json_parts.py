"""The JSON of replies with long lists or maps, made in parts and in steps, so that a large one does not block the event loop.

A short reply is encoded in one step. The type of a reply decides first whether it can be long, so short replies cost
nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.time_slices import Steps

#: A part ends when it has this many bytes. An item is never divided.
PART_BYTES: Final = 262_144
#: Lists with at most this many items, and this many bytes of payloads, are encoded in one step.
_FEW_ITEMS: Final = 2_000
_FEW_BYTES: Final = 1_048_576
#: The same of lists of texts, which take less time.
_FEW_TEXTS: Final = 10_000
#: Small items that are encoded in one step.
_STEP_ITEMS: Final = 32

encode: Final = msgspec.json.Encoder().encode


class LongKind(Enum):
    """What a field that may be long has."""

    STRUCTS = auto()  #: a list of structs
    TEXTS = auto()  #: a list of texts
    NUMBERS = auto()  #: a map of integers to integers
    VALUES = auto()  #: a map of names to JSON texts


class LongField(NamedTuple):
    """A field of a reply that may be long."""

    name: str  #: in Python
    spelled: str  #: in JSON
    kind: LongKind
    inside: str = ""  #: the field of the reply that has this field, if the reply itself does not have it

    @property
    def empty(self) -> Any:
        """Return the value without items."""
        return [] if self.kind in (LongKind.STRUCTS, LongKind.TEXTS) else {}

    def of(self, reply: Any) -> Any:
        """Return the value in a reply."""
        return getattr(getattr(reply, self.inside) if self.inside else reply, self.name)


#: The fields that may be long, for each reply type seen so far.
_fields: Final[dict[type, tuple[LongField, ...]]] = {}


def long_fields(shape: type) -> tuple[LongField, ...]:
    """Return the fields of a reply that may be long, in the order of the type.

    They are in the reply itself, or in an envelope in it: a field ``data`` that is a struct. Fields that may be absent are
    left out.
    """
    found = _fields.get(shape)
    if found is None:
        found = _fields[shape] = _long_fields(shape)
    return found


def _long_fields(shape: type) -> tuple[LongField, ...]:
    may_have = issubclass(shape, msgspec.Struct) and not shape.__struct_config__.omit_defaults
    info = inspect.type_info(shape) if may_have else None
    found: list[LongField] = []
    for each in info.fields if isinstance(info, inspect.StructType) else ():
        is_unset = not each.required and each.default is each.default_factory is msgspec.NODEFAULT
        kind = None if is_unset else _kind_of(each.type)
        if kind is not None:
            found.append(LongField(each.name, each.encode_name, kind))
        elif each.name == "data" and isinstance(each.type, inspect.StructType):
            inner = _long_fields(each.type.cls)
            found += [field._replace(inside=each.name) for field in inner if not field.inside]
    return tuple(found)


def without_items(reply: Any) -> Any:
    """Return a copy of a reply in which the fields that may be long are empty."""
    empty: dict[str, dict[str, Any]] = {}
    for field in long_fields(type(reply)):
        empty.setdefault(field.inside, {})[field.name] = field.empty
    changed = empty.pop("", {})
    for name, values in empty.items():
        changed[name] = msgspec.structs.replace(getattr(reply, name), **values)
    return msgspec.structs.replace(reply, **changed)


def _kind_of(kind: inspect.Type) -> LongKind | None:
    if isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType):
        return LongKind.STRUCTS
    if isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StrType):
        return LongKind.TEXTS
    if isinstance(kind, inspect.DictType):
        parts = (type(kind.key_type), type(kind.value_type))
        if parts == (inspect.IntType, inspect.IntType):
            return LongKind.NUMBERS
        if parts == (inspect.StrType, inspect.RawType):
            return LongKind.VALUES
    return None


def is_long(reply: Any) -> bool:
    """Return whether a reply has a list or a map with many items, or with large payloads. A reply may be a list itself."""
    if type(reply) is list:
        return len(reply) > _FEW_ITEMS
    for field in long_fields(type(reply)):
        items = field.of(reply)
        if len(items) > (_FEW_TEXTS if field.kind is LongKind.TEXTS else _FEW_ITEMS):
            return True
        if field.kind is LongKind.VALUES:
            if sum([len(memoryview(value)) for value in items.values()]) > _FEW_BYTES:
                return True
        elif (
            field.kind is LongKind.STRUCTS
            and items
            and type(getattr(items[0], "data", None)) is msgspec.Raw
            and _payload_bytes(items) > _FEW_BYTES
        ):
            return True
    return False


def _payload_bytes(items: Sequence[Any]) -> int:
    return sum([len(memoryview(item.data)) for item in items])


def part_steps(reply: Any) -> Steps[list[bytes]]:
    """Return the JSON of a reply in parts, made in steps."""
    parts: list[bytes] = []
    if type(reply) is list:
        part = bytearray(b"[")
        yield from _list_steps(reply, part, parts)
        return [*parts, bytes(part) + b"]"]
    rest = encode(without_items(reply))
    for field in long_fields(type(reply)):
        head, mark, rest = rest.partition(b'"%s":%s' % (field.spelled.encode(), encode(field.empty)))
        assert mark, "the fields are in the order of the type"
        parts.append(head + mark[:-1])
        part = bytearray()
        yield from _STEPS[field.kind](field.of(reply), part, parts)
        rest = bytes(part) + mark[-1:] + rest
    parts.append(rest)
    return parts


def _list_steps(items: Sequence[Any], part: bytearray, parts: list[bytes]) -> Steps[None]:
    """Add the items of a list to a part, in steps; full parts are added to ``parts``."""
    if items and type(items[0]) is str:  # encoding one is less work than calling the encoder
        for start in range(0, len(items), limits.count_rest_rows):
            part += b"," if start else b""
            part += encode(items[start : start + limits.count_rest_rows])[1:-1]
            if len(part) > PART_BYTES:
                parts.append(bytes(part))
                part.clear()
            yield
        return
    for number, item in enumerate(items):
        part += b"," if number else b""
        part += encode(item)
        if len(part) > PART_BYTES or not number % _STEP_ITEMS:
            if len(part) > PART_BYTES:
                parts.append(bytes(part))
                part.clear()
            yield


def _map_steps(items: Mapping[int, int], part: bytearray, parts: list[bytes]) -> Steps[None]:
    """Add the fields of a map to a part, in steps; full parts are added to ``parts``."""
    left = iter(items.items())
    while some := dict(islice(left, limits.count_rest_rows)):
        if part or parts[-1][-1:] != b"{":
            part += b","
        part += encode(some)[1:-1]
        if len(part) > PART_BYTES:
            parts.append(bytes(part))
            part.clear()
        yield


def _value_steps(items: Mapping[str, msgspec.Raw], part: bytearray, parts: list[bytes]) -> Steps[None]:
    """Add JSON texts and their names to a part, in steps, as ``_map_steps`` does."""
    for number, (name, value) in enumerate(items.items()):
        part += b"," if number else b""
        part += encode(name)
        part += b":"
        part += value
        if len(part) > PART_BYTES or not number % _STEP_ITEMS:
            if len(part) > PART_BYTES:
                parts.append(bytes(part))
                part.clear()
            yield


_STEPS: Final[dict[LongKind, Callable[[Any, bytearray, list[bytes]], Steps[None]]]] = {
    LongKind.STRUCTS: _list_steps,
    LongKind.TEXTS: _list_steps,
    LongKind.NUMBERS: _map_steps,
    LongKind.VALUES: _value_steps,
}
