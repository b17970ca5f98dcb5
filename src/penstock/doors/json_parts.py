"""The JSON of replies with long lists, made in parts and in steps, so that a large listing does not block the event loop.

A short reply is encoded in one step. The type of a reply decides first whether it can be long, so short replies cost
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.time_slices import Steps

#: A part ends when it has this many bytes. An item is never divided.
PART_BYTES: Final = 262_144
#: Lists with at most this many items, and this many bytes of payloads, are encoded in one step.
_FEW_ITEMS: Final = 2_000
_FEW_BYTES: Final = 1_048_576
#: Small items that are encoded in one step.
_STEP_ITEMS: Final = 32

encode: Final = msgspec.json.Encoder().encode

#: For each reply type seen so far: the fields that are lists of structs.
_lists: Final[dict[type, tuple[tuple[str, str], ...]]] = {}


def lists_of(shape: type) -> tuple[tuple[str, str], ...]:
    """Return the fields of a reply that are lists of structs: their Python names and their JSON names."""
    found = _lists.get(shape)
    if found is None:
        may_have = issubclass(shape, msgspec.Struct) and not shape.__struct_config__.omit_defaults
        info = inspect.type_info(shape) if may_have else None
        fields = info.fields if isinstance(info, inspect.StructType) else ()
        found = _lists[shape] = tuple((each.name, each.encode_name) for each in fields if _is_list(each.type))
    return found


def _is_list(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.ListType) and isinstance(kind.item_type, inspect.StructType)


def is_long(reply: Any) -> bool:
    """Return whether a reply has a list of many structs, or of structs with large payloads."""
    for name, _ in lists_of(type(reply)):
        items = getattr(reply, name)
        if len(items) > _FEW_ITEMS:
            return True
        if items and type(getattr(items[0], "data", None)) is msgspec.Raw and _payload_bytes(items) > _FEW_BYTES:
            return True
    return False


def _payload_bytes(items: Sequence[Any]) -> int:
    return sum([len(memoryview(item.data)) for item in items])


def part_steps(reply: Any) -> Steps[list[bytes]]:
    """Return the JSON of a reply in parts, made in steps."""
    lists = [(getattr(reply, name), spelled) for name, spelled in lists_of(type(reply))]
    bare = msgspec.structs.replace(reply, **{name: [] for name, _ in lists_of(type(reply))})
    rest = encode(bare)
    parts: list[bytes] = []
    for items, spelled in lists:
        head, mark, rest = rest.partition(b'"%s":[]' % spelled.encode())
        assert mark, "the fields are in the order of the type"
        parts.append(head + mark[:-1])
        part = bytearray()
        for number, item in enumerate(items):
            part += b"," if number else b""
            part += encode(item)
            if len(part) > PART_BYTES or not number % _STEP_ITEMS:
                if len(part) > PART_BYTES:
                    parts.append(bytes(part))
                    part.clear()
                yield
        rest = bytes(part) + b"]" + rest
    parts.append(rest)
    return parts
