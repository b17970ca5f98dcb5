"""Bind the arguments of a task to its signature, check them against its annotations, and convert them to and from JSON."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.client import _plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_WHERE: Final = re.compile(r" - at `\$\.?(.+)`\Z")
_MISSING: Final = re.compile(r"Object missing required field `(.+)`\Z")


class Arguments:
    """The parameters of a function, as a structure that JSON is checked against.

    Annotations may be any type that msgspec supports (numbers, texts, dataclasses, structs, datetimes, enums, unions, …),
    and pydantic models. A parameter without an annotation takes any JSON value. Raises TypeError for ``*args``,
    ``**kwargs``, positional-only parameters, and annotations that values cannot be checked against.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        self._task = function.__qualname__
        hints = typing.get_type_hints(function, include_extras=True)
        for parameter in self.signature.parameters.values():
            if parameter.kind not in _NAMED:
                raise TypeError(f"A task has named parameters only: {parameter} of {function.__qualname__} cannot be stored")
        self.result = hints.get("return", Any)
        fields: list[Any] = [
            (name, hints.get(name, Any))
            if parameter.default is parameter.empty
            else (name, hints.get(name, Any), msgspec.field(default=None))  # never used: missing arguments are not passed on
            for name, parameter in self.signature.parameters.items()
        ]
        self.shape = msgspec.defstruct(f"Arguments of {function.__qualname__}", fields, kw_only=True)
        _plain.check_kind(self.shape)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as JSON values, by name, with defaults. Raises TypeError for arguments that do not fit.

        Defaults are stored, too, so that a job runs later with the defaults of the moment when it was enqueued.
        """
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        plain = {name: _plain.to_plain(value, f"{self._task}: argument {name}") for name, value in bound.arguments.items()}
        self.read(plain)
        return plain

    def read(self, plain: Any) -> dict[str, Any]:
        """Return stored arguments as the types of the function's parameters. Raises TypeError for arguments that do not fit.

        A missing argument is left out if its parameter has a default. Arguments that the function does not have are left
        out: an older or a newer version of the program may have enqueued the job.
        """
        try:
            read = _plain.from_plain(plain, self.shape)
        except msgspec.ValidationError as error:
            raise TypeError(self._explained(str(error))) from None
        return {name: getattr(read, name) for name in self.signature.parameters if name in plain}

    def unknown(self, plain: Any) -> list[str]:
        """Return the names of stored arguments that the function does not have."""
        if not isinstance(plain, Mapping):
            return []
        return [name for name in plain if name not in self.signature.parameters]

    def _explained(self, text: str) -> str:
        if missing := _MISSING.match(text):
            return f"Argument {missing[1]} of {self._task} is missing, and has no default"
        if where := _WHERE.search(text):
            return f"Wrong argument {where[1]} of {self._task}: {text[: where.start()]}"
        return f"Wrong arguments of {self._task}: {text}"

    def read_result(self, plain: Any) -> Any:
        """Return a stored result as the return type of the function. Raises TypeError if it does not fit."""
        try:
            return _plain.from_plain(plain, self.result)
        except msgspec.ValidationError as error:
            raise TypeError(f"The result does not match the return type of the task: {error}") from None
