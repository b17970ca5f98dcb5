"""The deliveries that WebSockets of this server have out, and how they end by other ways than their own connection.

A consumer may acknowledge over HTTP, at this server or at another one, and somebody may purge the queue. All of that is in the
journal, so the feed is followed while there is anything out. An event only says that something happened to a message: it may
have been about an earlier delivery, of another server, and be told late. So the message is read before its place is freed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from penstock.core.errors import JobQuarantined, PenstockError
from penstock.core.events import EventKind as Kind
from penstock.core.lifecycle import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.engine.api import EngineApi
    from penstock.store.contract import JournalBlock

log = structlog.get_logger("penstock.push")

#: Messages that are read at the same time.
READ_AT_ONCE: Final = 16
#: Whoever has the receipt handle said so.
_WORDS: Final = frozenset({Kind.JOB_COMPLETED.value, Kind.JOB_FAILED.value, Kind.JOB_RELEASED.value})
#: After these a delivery may be over. That its time is over, its consumer knows by the clock.
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
    """A consumer that has deliveries out."""

    @property
    def namespace(self) -> str:
        """Where its queue is."""

    def delivery_over(self, job_id: int, token: int) -> None:
        """A delivery is over, by another way than this consumer's own connection."""

    def spoke(self) -> None:
        """Something was said about one of its deliveries, somewhere."""


class OpenDelivery(NamedTuple):
    """A message that is out, or was and came back because its time was over."""

    job_id: int
    holder: Holder


class Deliveries:
    """All deliveries over WebSockets of this server, by their lease tokens."""

    def __init__(self, engine: EngineApi) -> None:
        self._engine = engine
        self._all: dict[int, OpenDelivery] = {}
        self._out: dict[int, int] = {}  #: by message: the token of the delivery that is out
        self._unsure: dict[int, bool] = {}  #: tokens of deliveries to be looked into: was something said about them?
        self._looking: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def add(self, job_id: int, token: int, holder: Holder) -> None:
        """Note that a message is out."""
        self._all[token] = OpenDelivery(job_id, holder)
        self._out[job_id] = token
        if self._stop_listening is None:
            self._stop_listening = self._engine.feed.listen(self._hear)

    def came_back(self, token: int) -> None:
        """Note that the time of a delivery is over. It is looked into, and a late word about it is heard, until removed."""
        self._not_out(token)
        self._look_into(token, spoken_of=False)

    def remove(self, token: int) -> None:
        """Note that a delivery needs no more attention. Doing it twice is fine."""
        self._not_out(token)
        self._all.pop(token, None)

    def consumer_spoke(self, token: int) -> None:
        """Note that something was said about a delivery: its consumer lives, even if it was too late."""
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

    def _hear(self, block: JournalBlock) -> None:
        for event in block.events:
            token = self._out.get(event[2])
            if token is not None and event[0] in _ENDS:
                self._look_into(token, spoken_of=event[0] in _WORDS)

    def _look_into(self, token: int, *, spoken_of: bool) -> None:
        """Find out whether a delivery is over. ``spoken_of``: if it is, that is a sign of life of its consumer."""
        if token in self._all:
            self._unsure[token] = spoken_of or self._unsure.get(token, False)
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look(), name="penstock-deliveries")

    async def _look(self) -> None:
        try:
            while self._unsure:
                some = [(token, self._unsure.pop(token)) for token in list(self._unsure)[:READ_AT_ONCE]]
                await asyncio.gather(*(self._look_at(token, spoken_of=spoken_of) for token, spoken_of in some))
        finally:
            self._looking = None

    async def _look_at(self, token: int, *, spoken_of: bool) -> None:
        delivery = self._all.get(token)
        if delivery is None:
            return
        try:
            found = await self._engine.store.job_get(delivery.holder.namespace, delivery.job_id)
        except JobQuarantined:
            found = None
        except PenstockError as error:  # then it is over when its visibility timeout is
            log.debug("a message that is out cannot be read", error=str(error))
            return
        if found is not None and found[0].state == State.ACTIVE and found[0].token == token:
            return
        if token not in self._all:  # it was settled over its own connection meanwhile
            return
        if spoken_of or found is None or found[0].state == State.COMPLETED:
            delivery.holder.spoke()
        delivery.holder.delivery_over(delivery.job_id, token)
