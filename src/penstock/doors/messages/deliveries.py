"""The open deliveries to WebSockets of this server, and how they end without an action of their own connection.

A consumer may acknowledge over HTTP, at this server or at another one, and a client may purge the queue. The journal has all
of these events, so this module follows the event feed while a delivery is open. An event only shows that the message
changed. It may belong to an earlier delivery, to another server, and it may arrive late. So the message is read before its
place in the window is freed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from penstock.core.errors import JobQuarantined, ServerError
from penstock.core.events import EventKind as Kind
from penstock.core.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.engine.api import EngineApi
    from penstock.store.contract import JournalBlock

log = structlog.get_logger("penstock.push")

#: Messages that are read at the same time.
READ_AT_ONCE: Final = 16
#: Events that are caused by the holder of the receipt handle.
_WORDS: Final = frozenset({Kind.JOB_COMPLETED.value, Kind.JOB_FAILED.value, Kind.JOB_RELEASED.value})
#: After these events a delivery may be over. The consumer itself watches the clock for the visibility timeout.
_ENDS: Final = _WORDS | {
    kind.value
    for kind in (
        Kind.JOB_REMOVED,
        Kind.JOB_DELAYED,
        Kind.JOB_DISCARDED,
        Kind.JOB_QUARANTINED,
        Kind.JOB_WAITING_CHILDREN,
    )
}


class Holder(Protocol):
    """A consumer with open deliveries."""

    @property
    def namespace(self) -> str:
        """The namespace of its queue."""

    def delivery_over(self, job_id: int, token: int) -> None:
        """Handle the end of a delivery that this consumer's own connection did not settle."""

    def spoke(self) -> None:
        """Handle an ack or nack of one of its deliveries, received anywhere."""


class OpenDelivery(NamedTuple):
    """A delivered message: not settled yet, or its visibility timeout is over."""

    job_id: int
    holder: Holder


class Deliveries:
    """All deliveries over WebSockets of this server, by their lease tokens."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine
        self._all: dict[int, OpenDelivery] = {}
        self._out: dict[int, int] = {}  #: by message id: the token of the open delivery
        self._unsure: dict[int, bool] = {}  #: tokens of deliveries to check; True: an ack or nack was received
        self._checking: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def add(self, job_id: int, token: int, holder: Holder) -> None:
        """Add an open delivery."""
        self._all[token] = OpenDelivery(job_id, holder)
        self._out[job_id] = token
        if self._stop_listening is None:
            self._stop_listening = self._engine.feed.listen(self._handle_block)

    def came_back(self, token: int) -> None:
        """Record that the visibility timeout of a delivery is over. The delivery is checked, and a late ack still counts."""
        self._not_out(token)
        self._mark_unsure(token, spoken_of=False)

    def remove(self, token: int) -> None:
        """Remove a delivery. It is safe to call this twice."""
        self._not_out(token)
        self._all.pop(token, None)

    def consumer_spoke(self, token: int) -> None:
        """Record an ack or nack of a delivery: its consumer is active, even if the ack or nack was too late."""
        delivery = self._all.get(token)
        if delivery is not None:
            delivery.holder.spoke()

    def _not_out(self, token: int) -> None:
        delivery = self._all.get(token)
        if delivery is None or self._out.get(delivery.job_id) != token:
            return
        del self._out[delivery.job_id]
        if not self._out and self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None

    def _handle_block(self, block: JournalBlock) -> None:
        for event in block.events:
            token = self._out.get(event[2])
            if token is not None and event[0] in _ENDS:
                self._mark_unsure(token, spoken_of=event[0] in _WORDS)

    def _mark_unsure(self, token: int, *, spoken_of: bool) -> None:
        """Check whether a delivery is over. ``spoken_of``: if it is over, this shows that its consumer is active."""
        if token in self._all:
            self._unsure[token] = spoken_of or self._unsure.get(token, False)
            if self._checking is None:
                self._checking = asyncio.get_running_loop().create_task(self._check_unsure(), name="penstock-deliveries")

    async def _check_unsure(self) -> None:
        try:
            while self._unsure:
                some = [(token, self._unsure.pop(token)) for token in list(self._unsure)[:READ_AT_ONCE]]
                await asyncio.gather(*(self._check_delivery(token, spoken_of=spoken_of) for token, spoken_of in some))
        finally:
            self._checking = None

    async def _check_delivery(self, token: int, *, spoken_of: bool) -> None:
        delivery = self._all.get(token)
        if delivery is None:
            return
        try:
            found = await self._engine.store.job_get(delivery.holder.namespace, delivery.job_id)
        except JobQuarantined:
            found = None
        except ServerError as error:  # then the delivery ends with its visibility timeout
            log.debug("a message that is out cannot be read", error=str(error))
            return
        if found is not None and found[0].state == State.ACTIVE and found[0].token == token:
            return
        if token not in self._all:  # its own connection settled it in the meantime
            return
        if spoken_of or found is None or found[0].state == State.COMPLETED:
            delivery.holder.spoke()
        delivery.holder.delivery_over(delivery.job_id, token)
