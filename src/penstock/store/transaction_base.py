"""The part of a transaction that is in memory, for every store: queues, counts, events, and how to undo their changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

from penstock.core.errors import QueueMoving
from penstock.core.queue import SETTINGS_DEFAULT, MoveStep
from penstock.core.time_slices import Pauses
from penstock.store.catalog import C, Tally, as_counts, empty_tally

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.events import Event
    from penstock.core.queue import Move, Queue, QueueKey, QueueSettings, StateCounts
    from penstock.core.sharding import Layout
    from penstock.store.contract import BufferLogs, ReadyLists


class TransactionBase(Generic[C]):
    """Base of the transactions of stores. ``_take_back`` undoes its immediate changes of the catalog."""

    _catalog: C

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._deltas: dict[int, Tally] = {}
        self._undo: list[Callable[[], None]] = []
        self._removed: dict[int, Queue] = {}
        self._moved = False  #: a queue or the layout has changed
        self._pauses: Pauses | None = None  #: made when it is needed: most transactions are short

    async def pause(self) -> None:
        if self._pauses is None:
            self._pauses = Pauses()
        await self._pauses.pause()

    async def clock_mark(self) -> None:
        """Do nothing, unless a store overrides this."""

    @property
    def ready_lists(self) -> ReadyLists | None:
        return None

    @property
    def buffer_logs(self) -> BufferLogs | None:
        return None

    def _settings_of(self, queue: int) -> QueueSettings:
        known = self._catalog.by_number.get(queue)
        return SETTINGS_DEFAULT if known is None else known.settings

    def _take_back(self) -> None:
        """Restore the previous catalog."""
        for undo in reversed(self._undo):
            undo()

    @property
    def away(self) -> Mapping[int, Queue]:
        return self._catalog.away

    @property
    def layout(self) -> Layout | None:
        return self._catalog.layout

    def queue_away(self, key: QueueKey) -> Queue | None:
        return self._catalog.away_by_key.get(key)

    def queue_touch(self, queue: Queue) -> None:
        self._tally(queue.number)

    def queue_find(self, key: QueueKey) -> Queue | None:
        return self._catalog.by_key.get(key)

    def queue_by_number(self, number: int) -> Queue:
        return self._catalog.by_number.get(number) or self._removed[number]

    def namespace_number(self, name: str) -> int | None:
        return self._catalog.namespaces.get(name)

    def counts(self, queue: Queue) -> StateCounts:
        tally = self._catalog.tallies[queue.number]
        delta = self._deltas.get(queue.number)
        return as_counts(tally if delta is None else [a + b for a, b in zip(tally, delta, strict=True)])

    def journal(self, events: Sequence[Event]) -> None:
        self._events += events

    # Helpers for the operations of the stores.

    def _tally(self, queue: int) -> Tally:
        tally = self._deltas.get(queue)
        if tally is None:
            tally = self._deltas[queue] = empty_tally()
        return tally

    def _add_queue(self, queue: Queue) -> None:
        self._catalog.add(queue)
        self._undo.append(lambda: self._catalog.remove(queue))

    def _add_namespace(self, name: str, number: int) -> int:
        self._catalog.namespaces[name] = number
        self._undo.append(lambda: self._catalog.namespaces.__delitem__(name))
        return number

    def _set_queue(self, queue: Queue, settings: QueueSettings, created_at: int | None) -> None:
        before = queue.settings, queue.created_at
        self._catalog.configure(queue, settings, created_at)
        self._undo.append(lambda: self._catalog.configure(queue, *before))

    def _check_home(self, key: QueueKey) -> None:
        """Raise QueueMoving for a queue that must not be created here, because another shard has it or will have it."""
        layout = self._catalog.layout
        if key in self._catalog.away_by_key or (layout is not None and not layout.takes(key)):
            raise QueueMoving

    def _set_move(self, queue: Queue, move: Move) -> None:
        before = queue.move
        self._catalog.set_move(queue, move)
        self._undo.append(lambda: self._catalog.set_move(queue, before))
        self._moved = True

    def _drop_gone(self) -> None:
        for queue in list(self._catalog.away.values()):
            if queue.move.step is MoveStep.GONE:
                self._drop_queue(queue)

    def _set_layout(self, layout: Layout) -> None:
        before = self._catalog.layout
        self._catalog.layout = layout

        def undo() -> None:
            self._catalog.layout = before

        self._undo.append(undo)
        self._moved = True

    def _drop_queue(self, queue: Queue) -> None:
        tally = self._catalog.tallies[queue.number]
        self._catalog.remove(queue)
        self._removed[queue.number] = queue

        def undo() -> None:
            self._catalog.add(queue)
            self._catalog.tallies[queue.number] = tally

        self._undo.append(undo)

    def _mentioned(self) -> dict[int, tuple[str, str]]:
        """Return the namespace and name of every queue that the events mention."""
        names: dict[int, tuple[str, str]] = {}
        for number in {event[1] for event in self._events}:
            queue = self._catalog.by_number.get(number) or self._removed.get(number)
            names[number] = (queue.key.namespace, queue.key.name) if queue is not None else ("", "")
        return names
