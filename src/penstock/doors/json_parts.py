"""The JSON of replies with long lists or maps, made in parts and in steps, so that a large one does not block the event loop.

A short reply is encoded in one step. The type of a reply decides first whether it can be long, so short replies cost
nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from penstock.core import limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class LongField(NamedTuple):
    """A field of a reply that may be long: a list of structs or texts, or a map of integers to integers."""

    name: str  #: in Python
    spelled: str  #: in JSON
    is_map: bool

    @property
    def empty(self) -> Any:
        """Return the value without items."""
        return {} if self.is_map else []


#: The fields that may be long, for each reply type seen so far.
_fields: Final[dict[type, tuple[LongField, ...]]] = {}


def long_fields(shape: type) -> tuple[LongField, ...]:
    """Return the fields of a reply that may be long, in the order of the type."""
    found = _fields.get(shape)
    if found is None:
        may_have = issubclass(shape, msgspec.Struct) and not shape.__struct_config__.omit_defaults
        info = inspect.type_info(shape) if may_have else None
        fields = info.fields if isinstance(info, inspect.StructType) else ()
        found = _fields[shape] = tuple(
            LongField(each.name, each.encode_name, _is_map(each.type))
            for each in fields
            if (_is_list(each.type) or _is_map(each.type)) and not _may_be_unset(each)
        )
    return found


def without_items(reply: Any) -> Any:
    """Return a copy of a reply in which the fields that may be long are empty."""
    return msgspec.structs.replace(reply, **{each.name: each.empty for each in long_fields(type(reply))})


def _may_be_unset(field: inspect.Field) -> bool:
    return not field.required and field.default is field.default_factory is msgspec.NODEFAULT


def _is_list(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType | inspect.StrType)


def _is_map(kind: inspect.Type) -> bool:
    integers = (inspect.IntType, inspect.IntType)
    return isinstance(kind, inspect.DictType) and (type(kind.key_type), type(kind.value_type)) == integers


def is_long(reply: Any) -> bool:
    """Return whether a reply has a list of many structs or texts, or of structs with large payloads, or a map of many integers.

    A reply may be a list itself.
    """
    if type(reply) is list:
        return len(reply) > _FEW_ITEMS
    for name, _, is_map in long_fields(type(reply)):
        items = getattr(reply, name)
        if len(items) > (_FEW_TEXTS if not is_map and items and type(items[0]) is str else _FEW_ITEMS):
            return True
        if (
            not is_map
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
        items = getattr(reply, field.name)
        head, mark, rest = rest.partition(b'"%s":%s' % (field.spelled.encode(), encode(field.empty)))
        assert mark, "the fields are in the order of the type"
        parts.append(head + mark[:-1])
        part = bytearray()
        if field.is_map:
            yield from _map_steps(items, part, parts)
            rest = bytes(part) + b"}" + rest
            continue
        yield from _list_steps(items, part, parts)
        rest = bytes(part) + b"]" + rest
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
