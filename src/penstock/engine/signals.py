"""What an engine announces inside the server, and the one way to subscribe to it.

Subscribers are called on the event loop, in the order in which they subscribed, and must be quick. One that fails is logged and
does not keep the others from being called. A signal without subscribers costs one test.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.queue import QueueKey
    from penstock.engine.unit_of_work import UnitOfWork

log = structlog.get_logger("penstock.engine")

P = ParamSpec("P")
R = TypeVar("R")


class _Subscribers(Generic[P, R]):
    """Base of signals: the functions to call.

    ``subscribers`` is for reading; test it before computing something for them.
    """

    __slots__ = ("subscribers",)

    def __init__(self) -> None:
        self.subscribers: tuple[Callable[P, R], ...] = ()

    def subscribe(self, subscriber: Callable[P, R]) -> Callable[[], None]:
        """Call a function from now on each time this happens. The returned function ends that, and may be called twice."""
        self.subscribers = (*self.subscribers, subscriber)

        def end() -> None:
            self.subscribers = tuple(each for each in self.subscribers if each is not subscriber)

        return end


class Signal(_Subscribers[P, object]):
    """Something that happens. ``P``: what subscribers are called with."""

    __slots__ = ()

    def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all subscribers."""
        for call in self.subscribers:
            try:
                call(*args, **kwargs)
            except Exception:
                log.exception("a subscriber of a signal failed")


class AwaitedSignal(_Subscribers[P, Awaitable[object]]):
    """Something that continues only when each subscriber has done its part. An error of a subscriber is raised."""

    __slots__ = ()

    async def emit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call all subscribers, and wait for each."""
        for call in self.subscribers:
            await call(*args, **kwargs)


class EngineSignals:
    """The signals of one engine, so of one shard."""

    __slots__ = (
        "answered", "before_answers", "committed", "durable", "job_died", "leadership_changed", "queues_moved",
        "relays_written", "store_recovered", "webhooks_changed",
    )  # fmt: skip

    def __init__(self) -> None:
        #: A transaction was committed; it may not be on disk yet.
        self.committed: Signal[[UnitOfWork]] = Signal()
        #: A transaction was committed that touches queues with a ready list. Its answers wait for the subscribers.
        self.before_answers: AwaitedSignal[[UnitOfWork]] = AwaitedSignal()
        #: A committed transaction is as durable as its answers promise, and these were given.
        self.answered: Signal[[UnitOfWork]] = Signal()
        #: More of the journal is as durable as answers promise: see ``Engine.durable_up_to``.
        self.durable: Signal[[]] = Signal()
        #: A job became a dead letter, after the commit; with its queue. Once for each job.
        self.job_died: Signal[[QueueKey]] = Signal()
        #: Webhooks or push subscriptions were added, changed or removed, by any server.
        self.webhooks_changed: Signal[[]] = Signal()
        #: A transaction was committed that stores ends of jobs for other shards.
        self.relays_written: Signal[[]] = Signal()
        #: This server became the leader, or is not the leader any more.
        self.leadership_changed: Signal[[]] = Signal()
        #: The store was opened again after a failure, and may have lost its newest commits.
        self.store_recovered: Signal[[]] = Signal()
        #: A queue moved to or from this shard, or the number of shards changed.
        self.queues_moved: Signal[[]] = Signal()
