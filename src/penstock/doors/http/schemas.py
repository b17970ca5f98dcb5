"""JSON Schemas of requests and replies, generated from the structs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.core.time_slices import Steps

_REF: Final = "#/components/schemas/{name}"
#: A key of ``Meta(extra_json_schema=…)``: the type to send, where the server reads text and accepts invalid values.
SENT_AS: Final = "x-sent-as"


class Schemas:
    """Schemas of all shapes of an API: those of requests, and those of replies.

    They differ in the required fields. A request field is required if it has no default. A reply field is required if it is
    always sent. That includes fields with a default, unless their struct omits defaults.
    """

    def __init__(self, of: dict[Any, dict[str, Any]], components: dict[str, Any]) -> None:
        self._of = of
        self.components = components

    @classmethod
    def steps(cls, requests: Sequence[Any], replies: Sequence[Any]) -> Steps[Schemas]:
        """Return the schemas of an API, made in steps."""
        taken: list[type[msgspec.Struct]] = []
        sent: list[type[msgspec.Struct]] = []
        for shapes, structs in ((requests, taken), (replies, sent)):
            for struct in structs_in(shapes):
                structs.append(struct)
                yield
        shapes = list(dict.fromkeys([*requests, *replies, *taken, *sent]))
        found, components = msgspec.json.schema_components(shapes, ref_template=_REF)
        yield
        schemas = cls(dict(zip(shapes, found, strict=True)), components)
        for struct in sent:
            schema = schemas.definition(struct)
            required = _always_sent(struct)
            if struct in taken and required != schema["required"]:
                raise ValueError(
                    f"{struct.__name__} is a part of requests and of replies, and some of its fields have defaults"
                )
            schema["required"] = required
            for name in required:
                schema["properties"][name].pop("default", None)
            yield
        _spell(components)
        return schemas

    def of(self, shape: Any) -> dict[str, Any]:
        """Return the schema of a shape: a struct by its name, a list by its items."""
        schema: dict[str, Any] = self._of[shape]
        return schema

    def definition(self, struct: type) -> dict[str, Any]:
        """Return the complete schema of a struct."""
        definition: dict[str, Any] = self.components[self.of(struct)["$ref"].rpartition("/")[2]]
        return definition


def query_parameters(struct: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """Return the parameters of a query string. It has no null: an absent parameter is left out."""
    (definition,) = msgspec.json.schema(struct)["$defs"].values()
    _spell(definition)
    return [
        {"name": name, "in": "query", "required": name in definition["required"], "schema": _without_null(each)}
        for name, each in definition["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    schema = dict(schema)
    if "anyOf" in schema:
        kinds = [each for each in schema.pop("anyOf") if each != {"type": "null"}]
        schema |= kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if schema.get("default", "") in (None, ""):
        schema.pop("default", None)
    if SENT_AS in schema:
        schema["type"] = schema.pop(SENT_AS)
    return schema


def _always_sent(struct: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(struct) if not _may_be_missing(struct, field)]


def _may_be_missing(struct: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> bool:
    if field.default is msgspec.UNSET:
        return True
    return struct.__struct_config__.omit_defaults and not field.required


def structs_in(shapes: Iterable[Any], *, deep: bool = True) -> Iterator[type[msgspec.Struct]]:
    """Return all structs that shapes consist of, each once. Unless ``deep``, without the structs nested in other structs."""
    seen: set[type] = set()
    left = list(shapes)
    kinds: list[inspect.Type] = []
    while left or kinds:
        kind = kinds.pop() if kinds else inspect.type_info(left.pop())
        if isinstance(kind, inspect.StructType):
            if kind.cls in seen:
                continue
            seen.add(kind.cls)
            yield kind.cls
            kinds += [field.type for field in kind.fields] if deep else []
        elif isinstance(kind, inspect.UnionType):
            kinds += kind.types
        elif isinstance(kind, inspect.DictType):
            kinds.append(kind.value_type)
        elif isinstance(kind, inspect.CollectionType):
            kinds.append(kind.item_type)
        elif isinstance(kind, inspect.Metadata):
            kinds.append(kind.type)


def _spell(schema: Any) -> None:
    r"""Convert patterns to the syntax of JSON Schema.

    It uses ECMAScript's, where the end is ``$``; there ``\Z`` is the letter Z.
    """
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            schema["pattern"] = schema["pattern"].replace(r"\Z", "$")
        for each in schema.values():
            _spell(each)
    elif isinstance(schema, list):
        for each in schema:
            _spell(each)
