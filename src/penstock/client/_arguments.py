"""Arguments of a task: bound to its signature, checked against its annotations, and as JSON."""

from __future__ import annotations

import inspect
import typing
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """The parameters of a function, as a shape that JSON is checked against.

    Annotations decide: anything msgspec knows (numbers, texts, dataclasses, structs, datetimes, enums, unions, …). What has no
    annotation may be anything that JSON can say. Raises TypeError for ``*args``, ``**kwargs`` and positional-only parameters.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        hints = typing.get_type_hints(function, include_extras=True)
        for parameter in self.signature.parameters.values():
            if parameter.kind not in _NAMED:
                raise TypeError(f"A task has named parameters only: {parameter} of {function.__qualname__} cannot be stored")
        self.result = hints.get("return", Any)
        fields = [(name, hints.get(name, Any)) for name in self.signature.parameters]
        # Every value is there, defaults included: what runs later runs with what was meant when it was enqueued.
        self.shape = msgspec.defstruct(f"Arguments of {function.__qualname__}", fields, forbid_unknown_fields=True)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values, by name, with defaults. Raises TypeError for those that do not fit."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        plain: dict[str, Any] = msgspec.to_builtins(bound.arguments)
        self.read(plain)
        return plain

    def read(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return stored arguments as the types the function wants. Raises TypeError for those that do not fit."""
        try:
            read = msgspec.convert(plain, self.shape)
        except msgspec.ValidationError as error:
            raise TypeError(f"Wrong argument: {error}") from None
        return {name: getattr(read, name) for name in self.signature.parameters}

    def read_result(self, plain: Any) -> Any:
        """Return a stored result as the type the function says it returns. Raises TypeError if it is another."""
        try:
            return msgspec.convert(plain, self.result)
        except msgspec.ValidationError as error:
            raise TypeError(f"The result is not what the task says it returns: {error}") from None
