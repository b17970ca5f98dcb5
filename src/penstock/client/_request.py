"""A call of the server as data: the request, how its answer is read, and whether it may be sent twice. Does no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from penstock.client._plain import encode, without_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: What a lost answer means, and what to do about it.
IF_DONE: Final = "it may have been done"
IF_PUSHED: Final = "it may be stored. Push it again with the same job_id, and it is there once"
IF_TAKEN: Final = "jobs may have been leased to you. They are ready again when the lease ends"
IF_SETTLED: Final = (
    "it may have counted. Send it again with the same token: a refusal then means that it did, or that the lease is over"
)

T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[T]):
    """One request.

    ``repeatable``: it is safe to send it again if the answer to the first was lost. ``already``: statuses that mean success,
    if an earlier try may have succeeded. ``wait_ms``: how long the server may take on purpose. ``settles``: it is about a
    lease, so a refusal means that the lease is lost. ``if_unknown``: the text for a request whose answer was lost.
    """

    method: str
    path: str
    decode: Callable[[bytes], T]
    body: bytes | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    already: tuple[int, ...] = ()
    wait_ms: int = 0
    settles: bool = False
    if_unknown: str = IF_DONE


def path(template: str, *names: str) -> str:
    """Return a path with names in place of ``{}``, quoted: a name may have any characters."""
    return template.format(*(quote(name, safe="") for name in names))


def query(**params: object) -> dict[str, str]:
    """Return query parameters; those that are None are left out."""
    return {name: _text(value) for name, value in without_none(params).items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def body(**fields: object) -> bytes:
    """Return a JSON body; fields that are None are left out."""
    return encode(without_none(fields))


def nothing(_content: bytes) -> None:
    """Read an answer that has no content."""


def reading(kind: type[S], pick: Callable[[S], T]) -> Callable[[bytes], T]:
    """Return a reader of answers of one kind, which returns the part that the caller needs."""
    decode = msgspec.json.Decoder(kind).decode

    def read(content: bytes) -> T:
        return pick(decode(content))

    return read


def one_field(name: str, kind: Any) -> Callable[[bytes], Any]:
    """Return a reader of answers of which one field is needed; ``kind`` is its type."""
    shape = msgspec.defstruct(f"_{name}", [("value", kind, msgspec.field(name=name))])
    return reading(shape, lambda reply: reply.value)  # type: ignore[attr-defined]
