"""The hub subscribes once to the engine's event feed, and passes each event on to the readers that have subscribed to it.

Readers are found by the kind of an event, so readers of other kinds cost nothing. While there is no reader, the
hub is not subscribed to the feed.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from penstock.core import limits
from penstock.core.clock import yield_to_loop
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


#: Events about the server that reveal nothing about its contents.
_VISIBLE_TO_ALL: Final = frozenset({EventKind.SERVER_STARTED, EventKind.SERVER_SHUTDOWN})


_NO_QUEUE: Final = ("", "")


def _named_by(event: Sequence[Any]) -> str:
    """Return the namespace that an event itself has; empty if it has none."""
    return (event[3] or "") if event[0] in PAYLOAD_KINDS else ""


class EventReader:
    """One connection that receives events of some kinds, from one namespace and optionally one queue.

    ``render`` returns an event in the form for this reader. ``take`` gets each event, rendered and original, and returns
    whether it had room. ``everywhere``: it may see the server as a whole, so it also gets figures over all namespaces.
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
        self.filed = namespace  #: the namespace under which the hub lists it
        self.queue = queue
        self.kinds: frozenset[EventKind] = frozenset()
        self.missed = 0  #: events that were dropped because it had no room
        self.greeted = False  #: whether it was notified, or will be, that the server has started

    def concerns(self, outgoing: OutgoingEvent) -> bool:
        """Return whether an event is in the namespace and queue of this reader, or about the server and visible to it."""
        if outgoing.namespace is None:
            return self.everywhere or outgoing.kind in _VISIBLE_TO_ALL
        if outgoing.namespace != self.namespace:
            return False
        return not self.queue or not outgoing.queue or outgoing.queue == self.queue


class EventHub:
    """Passes events on to readers. They subscribe with ``want``; a call without kinds unsubscribes."""

    def __init__(self, feed: EventFeed, clock: Clock, fair_share: FairShare | None = None) -> None:
        self._fair_share = fair_share
        self._feed = feed
        self._clock = clock
        self._started: OutgoingEvent | None = None
        self._started_until = 0  #: steady ms
        #: By kind and namespace, in the order of their subscription: an event costs nothing for readers of other namespaces.
        self._readers: dict[int, dict[str, dict[EventReader, None]]] = {}
        self._wanted: dict[int, int] = {}  #: number of readers of a kind
        self._end: Callable[[], None] | None = None
        #: Events to pass on, by namespace: a block and a position in it. No entry is empty.
        self._backlogs: dict[str, deque[tuple[JournalBlock, int]]] = {}
        self._task: asyncio.Task[None] | None = None  #: passes on the waiting events
        self.missed = 0  #: events dropped because readers had no room, since the server started
        self.on_block: list[Callable[[JournalBlock], None]] = []  #: called with each block while there are readers
        self.on_wish: list[Callable[[], None]] = []  #: called when the wanted kinds of readers change

    def want(self, reader: EventReader, kinds: frozenset[EventKind]) -> None:
        """Change which kinds of events a reader gets."""
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
            self._end = self._feed.listen(self._handle_block)
        elif not self._readers and self._end is not None:
            self._end()
            self._end = None
        for listener in self.on_wish:
            listener()

    def _remove(self, kind: int, reader: EventReader) -> None:
        self._wanted[kind] -= 1
        namespaces = self._readers[kind]
        del namespaces[reader.filed][reader]
        if not namespaces[reader.filed]:
            del namespaces[reader.filed]
            if not namespaces:
                del self._readers[kind]

    def start(self, payload: Mapping[str, object]) -> None:
        """Publish that the server has started: now to present readers, and for a limited time to new ones."""
        now = self._clock.now_ms()
        self._started_until = self._clock.steady_ms() + limits.server_started_ms
        self._started = OutgoingEvent(
            JournalBlock(UNNUMBERED, now, [queue_event(EventKind.SERVER_STARTED, 0, payload)], {}), 0
        )
        self._feed.publish_transient(EventKind.SERVER_STARTED, payload, now)

    def greet(self, reader: EventReader) -> None:
        """Send a new reader the event that the server has started, if it is subscribed to it and the start was recent."""
        if reader.greeted or EventKind.SERVER_STARTED not in reader.kinds:
            return
        reader.greeted = True
        if self._started is not None and self._clock.steady_ms() < self._started_until:
            self._pass_on(self._started, (reader,))

    async def data_of(self, store: Store | ShardedStore, outgoing: OutgoingEvent) -> bytes | None:
        """Return the result of a completed job, or the payload of a failed one, as JSON; None if removed or too large."""
        found = await data_of(store, outgoing.kind, outgoing.namespace or "", outgoing.job)
        return self._feed.removed.get(outgoing.job) if found is None and outgoing.kind is EventKind.JOB_COMPLETED else found

    def wanted(self, kind: EventKind) -> int:
        """Return the number of readers of a kind. Check this before you compute something for events of that kind."""
        return self._wanted.get(kind.value, 0)

    def turn(self, namespace: str) -> asyncio.Future[None] | None:
        """Return what a reader of a namespace must wait for before it is sent events (None: nothing)."""
        return None if self._fair_share is None else self._fair_share.background.begin(namespace)

    def _handle_block(self, block: JournalBlock) -> None:
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
        """Pass on events at once if none of their namespace wait, up to the limit for one turn of the event loop."""
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
        if self._fair_share is not None and len(backlog) > limits.fan_out_behind_events:
            self._fair_share.fall_behind(namespace)

    async def _pass_on_rest(self) -> None:
        """Pass on waiting events in the next turns of the event loop, some of each namespace in rotation."""
        try:
            while self._backlogs:
                for namespace in list(self._backlogs):
                    if self._fair_share is not None:
                        await self._fair_share.give_way(namespace)
                    messages = limits.fan_out_waited_messages if self._shared else limits.fan_out_turn_messages
                    self._pass_on_some(namespace, messages)
                    await yield_to_loop(1)
        finally:
            self._task = None
            if self._fair_share is not None:
                for namespace in self._backlogs:  # none, unless this task failed
                    self._fair_share.catch_up(namespace)

    @property
    def _shared(self) -> bool:
        return self._fair_share is not None and self._fair_share.shared

    def _pass_on_some(self, namespace: str, messages: int) -> None:
        """Pass on the oldest events of a namespace, until this many messages were offered to readers."""
        backlog = self._backlogs.get(namespace)
        while backlog and messages > 0:
            block, index = backlog.popleft()
            readers = self._readers_of(block, index)
            if readers:
                messages -= len(readers)
                self._pass_on(OutgoingEvent(block, index), readers)
        if not backlog:
            self._backlogs.pop(namespace, None)
        if self._fair_share is not None and (not backlog or len(backlog) <= limits.fan_out_behind_events // 2):
            self._fair_share.catch_up(namespace)

    def _readers_of(self, block: JournalBlock, index: int) -> tuple[EventReader, ...]:
        """Return the readers of an event of this kind, of its namespace if the block has it."""
        event = block.events[index]
        namespaces = self._readers.get(event[0])
        if not namespaces:
            return ()
        namespace = block.queues.get(event[1], _NO_QUEUE)[0]
        if namespace:
            return tuple(namespaces.get(namespace, ()))
        return tuple(reader for each in namespaces.values() for reader in each)  # the event itself has its namespace

    def _pass_on(self, outgoing: OutgoingEvent, readers: tuple[EventReader, ...]) -> None:
        for reader in readers:
            if reader.concerns(outgoing) and not reader.take(outgoing.form(reader.render), outgoing):
                reader.missed += 1
                self.missed += 1
