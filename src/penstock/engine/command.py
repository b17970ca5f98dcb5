"""A command: one operation with its arguments, on its way from a door to the store and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from penstock.core.queue import QueueKey

Outcome = TypeVar("Outcome")
T = TypeVar("T")

#: The tenant of commands that name no namespace, but a receipt handle or the id of a subscription: they share one line.
BY_RECEIPT: Final = ""

#: A job as clients name it: by its id, or by its custom id.
JobRef = int | str


class Lane:
    """Lanes: where commands run when there is more to do than one transaction at a time can do. In each lane, in order.

    A command with a lane of its own answers no waiting claim, and does not depend on what is done in the other lanes. Plain
    integers: looking up a member of an enum costs more than the rest of the choice.
    """

    MAIN: Final = 0
    PUSHES: Final = 1
    ACKS: Final = 2


class IfUnknown:
    """Advice about a command whose outcome is unknown, for the person who gets that answer."""

    CHANGE: Final = "Check whether the change was made, and send it again if it was not."
    PUSH: Final = (
        "Push it again with the same jobId or Idempotency-Key: it is stored once. Without one it may be stored twice."
    )
    PULL: Final = "Pull again: jobs that were leased without an answer are ready again when their leases end."
    SETTLE: Final = "Send it again with the same token: a refusal then means that it counted, or that the lease has ended."
    SETTLE_BY_ID: Final = "Send it again: it counts once. If it is not found then, it counted."


class Command(Generic[Outcome]):
    """Base of all commands. A door makes one and awaits ``engine.run(command)``.

    Each command is a subclass with its arguments, and has one ``apply`` function that runs a whole list of such commands
    inside a transaction: see ``dispatch.py``.
    """

    __slots__ = ("bounced_ms", "future")

    lane: ClassVar[int] = Lane.MAIN  #: where it runs while the server is busy
    grows: ClassVar[bool] = False  #: it needs more space on disk, so it is refused while the disk is full
    if_unknown: ClassVar[str] = IfUnknown.CHANGE  #: what to do if its outcome is unknown
    urgent: ClassVar[bool] = False  #: it is about leases: it does not wait for the other commands of its namespace
    durable: bool = False  #: its answer waits for an fsync even if the server's durability would not

    def tenant(self) -> str | None:
        """Return the namespace whose share of a batch it uses; None: the server itself sends it, and it has no share."""
        return None

    def weight(self) -> int:
        """Return its cost; the unit is the cost of storing one small job. A command with a list counts what is in it."""
        return 1

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return the queues that it needs here. If one is on another shard, the command is refused before it runs."""
        return ()

    def locked_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs that it locks: each with its namespace (None: any) and its name. Default: ``unheld_jobs``.

        On a store that several servers share, a batch first locks the jobs of all its commands, in the order of their ids. So
        transactions wait for each other, and never in a circle.
        """
        return self.unheld_jobs()

    def unheld_jobs(self) -> Iterable[tuple[str | None, JobRef]]:
        """Return the jobs that it changes without a lease token: each with its namespace (None: any) and its name.

        Those of them that are on a ready list get their places in the queue back before the command runs.
        """
        return ()

    def __init__(self) -> None:
        self.future: asyncio.Future[Outcome]
        self.bounced_ms: int  #: steady ms when a shard first refused it because of a moved queue; else not set


class NamespaceCommand(Command[Outcome]):
    """Base of the commands about one namespace, which use its share."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    def tenant(self) -> str | None:
        """Return its namespace."""
        return self.namespace


class QueueCommand(Command[Outcome]):
    """Base of the commands about one queue, which use the share of its namespace."""

    __slots__ = ("queue",)

    def __init__(self, queue: QueueKey) -> None:
        self.queue = queue

    def tenant(self) -> str | None:
        """Return the namespace of its queue."""
        return self.queue.namespace

    def needed_queues(self) -> Iterable[QueueKey]:
        """Return that queue."""
        return (self.queue,)


AnyCommand = Command[Any]


class Submit(Protocol):
    """Takes a command. Awaiting the future gives the answer, or raises the error."""

    def __call__(self, command: Command[T], /) -> asyncio.Future[T]:
        """Submit a command."""
