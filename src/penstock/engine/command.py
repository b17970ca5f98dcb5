"""A command: one verb with its arguments, on its way from a door to the store and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio

Outcome = TypeVar("Outcome")


class Command(Generic[Outcome]):
    """Base of all verbs. A door makes one and awaits ``engine.run(command)``.

    A verb is a subclass of this with its arguments, and one ``apply`` function that decides a whole list of such commands
    inside a transaction; ``verbs.py`` lists them all.
    """

    __slots__ = ("future",)

    #: It serves nobody who waits in line and needs no rest of the batch, so it may be done next to one, in a transaction of
    #: its own.
    beside: ClassVar[bool] = False
    grows: ClassVar[bool] = False  #: it needs more room on disk, so it is refused while the disk is full
    durable: bool = False  #: its answer waits for an fsync even if the server's durability would not

    def __init__(self) -> None:
        self.future: asyncio.Future[Outcome]


AnyCommand = Command[Any]
