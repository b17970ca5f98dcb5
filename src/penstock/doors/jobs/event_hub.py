"""The hub: hears the engine's feed once and passes each event on to the readers that want it.

Readers are found by the kind of an event, so those who wait for something else cost nothing. While there is no reader, the
feed is not listened to at all.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.core import limits
from penstock.core.clock import settle
from penstock.core.events import PAYLOAD_KINDS, EventKind, queue_event
from penstock.core.job import DEFAULT_NAMESPACE
from penstock.doors.jobs.event_rendering import OutgoingEvent
from penstock.engine.event_feed import UNNUMBERED
from penstock.outbound.request import data_of
from penstock.store.contract import JournalBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.engine.event_feed import EventFeed
    from penstock.engine.fair_share import FairShare
    from penstock.store.contract import Store
    from penstock.store.sharded import ShardedStore


#: What is about the server and tells nothing of what is on it.
_FOR_EVERYBODY: Final = frozenset({EventKind.SERVER_STARTED, EventKind.SERVER_SHUTDOWN})


_NO_QUEUE: Final = ("", "")


def _named_by(event: Sequence[Any]) -> str:
    """Return the namespace that an event itself has, or nothing."""
    return (event[3] or "") if event[0] in PAYLOAD_KINDS else ""


class EventReader:
    """One connection that wants events of some kinds, of one namespace, perhaps of one queue.

    ``render`` is the form it wants them in; ``take`` is given each, rendered and as it is, and tells whether it had room.
    ``everywhere``: it may know of the server as a whole, so figures of all namespaces together are for it too.
    """

    __slots__ = ("everywhere", "filed", "greeted", "kinds", "missed", "namespace", "queue", "render", "take")

    def __init__(
        self,
        render: Callable[[OutgoingEvent], Any],
        take: Callable[[Any, OutgoingEvent], bool],
        *,
        namespace: str = DEFAULT_NAMESPACE,
        queue: str = "",
        everywhere: bool = True,
    ) -> None:
        self.everywhere = everywhere
        self.render = render
        self.take = take
        self.namespace = namespace
        self.filed = namespace  #: the namespace under which the hub finds it
        self.queue = queue
        self.kinds: frozenset[EventKind] = frozenset()
        self.missed = 0  #: events it had no room for
        self.greeted = False  #: whether it was told, or will be told, that the server has started

    def concerns(self, told: OutgoingEvent) -> bool:
        """Tell whether an event is about what this reader looks at, or about the server, as far as it may know of that."""
        if told.namespace is None:
            return self.everywhere or told.kind in _FOR_EVERYBODY
        if told.namespace != self.namespace:
            return False
        return not self.queue or not told.queue or told.queue == self.queue


class EventHub:
    """Readers join with ``want`` and leave by wanting nothing."""

    def __init__(self, feed: EventFeed, clock: Clock, share: FairShare | None = None) -> None:
        self._share = share
        self._feed = feed
        self._clock = clock
        self._started: OutgoingEvent | None = None
        self._started_until = 0  #: steady ms
        #: By kind and namespace, in the order in which they came: an event costs nothing for readers of other namespaces.
        self._readers: dict[int, dict[str, dict[EventReader, None]]] = {}
        self._wanted: dict[int, int] = {}  #: how many want a kind
        self._end: Callable[[], None] | None = None
        #: Events to pass on, of each namespace: a block and a position in it. None is empty.
        self._backlogs: dict[str, deque[tuple[JournalBlock, int]]] = {}
        self._task: asyncio.Task[None] | None = None  #: passes on what waits
        self.missed = 0  #: events that readers had no room for, since the server started
        self.on_block: list[Callable[[JournalBlock], None]] = []  #: who else looks at what happens, while somebody reads
        self.on_wish: list[Callable[[], None]] = []  #: who is told when the wishes of readers change

    def want(self, reader: EventReader, kinds: frozenset[EventKind]) -> None:
        """Change which events a reader gets."""
        moved = reader.filed != reader.namespace
        for kind in reader.kinds if moved else reader.kinds - kinds:
            self._remove(kind.value, reader)
        added = kinds if moved else kinds - reader.kinds
        reader.filed = reader.namespace
        for kind in added:
            self._readers.setdefault(kind.value, {}).setdefault(reader.filed, {})[reader] = None
            self._wanted[kind.value] = self._wanted.get(kind.value, 0) + 1
        reader.kinds = kinds
        if self._readers and self._end is None:
            self._end = self._feed.listen(self._hear)
        elif not self._readers and self._end is not None:
            self._end()
            self._end = None
        for tell in self.on_wish:
            tell()

    def _remove(self, kind: int, reader: EventReader) -> None:
        self._wanted[kind] -= 1
        namespaces = self._readers[kind]
        del namespaces[reader.filed][reader]
        if not namespaces[reader.filed]:
            del namespaces[reader.filed]
            if not namespaces:
                del self._readers[kind]

    def start(self, payload: Mapping[str, object]) -> None:
        """Tell that the server has started: now to those who are there already, and for a while to whoever comes."""
        now = self._clock.now_ms()
        self._started_until = self._clock.steady_ms() + limits.server_started_ms
        self._started = OutgoingEvent(
            JournalBlock(UNNUMBERED, now, [queue_event(EventKind.SERVER_STARTED, 0, payload)], {}), 0
        )
        self._feed.publish_transient(EventKind.SERVER_STARTED, payload, now)

    def greet(self, reader: EventReader) -> None:
        """Tell a reader that has just come that the server has started, if it wants to know and if that was just now."""
        if reader.greeted or EventKind.SERVER_STARTED not in reader.kinds:
            return
        reader.greeted = True
        if self._started is not None and self._clock.steady_ms() < self._started_until:
            self._pass_on(self._started, (reader,))

    async def data_of(self, store: Store | ShardedStore, told: OutgoingEvent) -> bytes | None:
        """Return the result of a completed job, or the payload of a failed one: JSON; None if it is gone or too large."""
        found = await data_of(store, told.kind, told.namespace or "", told.job)
        return self._feed.removed.get(told.job) if found is None and told.kind is EventKind.JOB_COMPLETED else found

    def wanted(self, kind: EventKind) -> int:
        """Return how many readers want a kind. Who would have to compute something asks this first."""
        return self._wanted.get(kind.value, 0)

    def turn(self, namespace: str) -> asyncio.Future[None] | None:
        """Return what a reader of a namespace has to wait for before it is sent events (None: nothing)."""
        return None if self._share is None else self._share.background.begin(namespace)

    def _hear(self, block: JournalBlock) -> None:
        added: dict[str, deque[tuple[JournalBlock, int]]] = {}
        for index, event in enumerate(block.events):
            if event[0] in self._readers:
                namespace = block.queues.get(event[1], _NO_QUEUE)[0] or _named_by(event)
                backlog = added.get(namespace)
                if backlog is None:
                    backlog = added[namespace] = deque()
                backlog.append((block, index))
        for namespace, backlog in added.items():
            self._add(namespace, backlog)
        if block.events[0][0] == EventKind.SERVER_SHUTDOWN:
            for namespace in list(self._backlogs):
                self._pass_on_some(namespace, sys.maxsize)
        for look in self.on_block:
            look(block)

    def _add(self, namespace: str, events: deque[tuple[JournalBlock, int]]) -> None:
        """Pass on events at once if none of their namespace wait, as many as one turn of the event loop should take."""
        backlog = self._backlogs.get(namespace)
        if backlog is None:
            self._backlogs[namespace] = events
            self._pass_on_some(namespace, limits.fan_out_shared_messages if self._shared else limits.fan_out_turn_messages)
            backlog = events
        else:
            backlog += events
            while len(backlog) > limits.fan_out_events_max:
                self._pass_on_some(namespace, 1)
        if backlog and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._pass_on_rest())
        if self._share is not None and len(backlog) > limits.fan_out_behind_events:
            self._share.fall_behind(namespace)

    async def _pass_on_rest(self) -> None:
        """Pass on what waits in the next turns of the event loop, a part of each namespace in rotation."""
        try:
            while self._backlogs:
                for namespace in list(self._backlogs):
                    if self._share is not None:
                        await self._share.give_way(namespace)
                    messages = limits.fan_out_waited_messages if self._shared else limits.fan_out_turn_messages
                    self._pass_on_some(namespace, messages)
                    await settle(1)
        finally:
            self._task = None
            if self._share is not None:
                for namespace in self._backlogs:  # none, unless it failed
                    self._share.catch_up(namespace)

    @property
    def _shared(self) -> bool:
        return self._share is not None and self._share.shared

    def _pass_on_some(self, namespace: str, messages: int) -> None:
        """Pass on the oldest events of a namespace, until so many messages were offered to readers."""
        backlog = self._backlogs.get(namespace)
        while backlog and messages > 0:
            block, index = backlog.popleft()
            readers = self._readers_of(block, index)
            if readers:
                messages -= len(readers)
                self._pass_on(OutgoingEvent(block, index), readers)
        if not backlog:
            self._backlogs.pop(namespace, None)
        if self._share is not None and (not backlog or len(backlog) <= limits.fan_out_behind_events // 2):
            self._share.catch_up(namespace)

    def _readers_of(self, block: JournalBlock, index: int) -> tuple[EventReader, ...]:
        """Return the readers that want an event of this kind, of its namespace if the block has it."""
        event = block.events[index]
        namespaces = self._readers.get(event[0])
        if not namespaces:
            return ()
        namespace = block.queues.get(event[1], _NO_QUEUE)[0]
        if namespace:
            return tuple(namespaces.get(namespace, ()))
        return tuple(reader for each in namespaces.values() for reader in each)  # the event itself has its namespace

    def _pass_on(self, told: OutgoingEvent, readers: tuple[EventReader, ...]) -> None:
        for reader in readers:
            if reader.concerns(told) and not reader.take(told.form(reader.render), told):
                reader.missed += 1
                self.missed += 1
