"""Events that no command causes: changed counts, periodic figures, and thresholds that are passed.

Each is computed only while it has a reader, and at a bounded rate under any load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.core import limits
from penstock.core.events import EventKind as Kind
from penstock.core.queue import QueueKey
from penstock.doors.ops.health import Connections, collections_of
from penstock.doors.ops.memory import read_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.clock import Alarm
    from penstock.core.queue import Queue
    from penstock.doors.jobs.event_hub import EventHub
    from penstock.doors.ops.health import Uptime
    from penstock.engine.api import EngineApi
    from penstock.engine.worker_registry import WorkerRegistry
    from penstock.store.contract import JournalBlock

#: Counts are sent at most this often. They are sent less often if many readers follow many queues, which bounds the work.
COUNTS_EVERY_MS: Final = 100
COUNTS_EVERY_MS_MAX: Final = 5_000
COUNTS_MESSAGES_PER_MS: Final = 4
STATS_EVERY_MS: Final = 5_000
HEALTH_EVERY_MS: Final = 10_000
STORAGE_EVERY_MS: Final = 30_000
WARN_EVERY_MS: Final = 5_000
IDLE_CHECK_EVERY_MS: Final = 1_000


class Thresholds(NamedTuple):
    """When to warn; 0 = never."""

    idle_ms: int = 30_000  #: a queue without jobs for this long is idle
    queue_size: int = 0
    memory_mb: int = 0
    storage_mb: int = 0


class Pulse:
    """Calls a function every few ms, but only while one of the given kinds has a reader."""

    def __init__(self, watch: Monitors, kinds: tuple[Kind, ...], every_ms: int, beat: Callable[[], None]) -> None:
        self._watch = watch
        self._kinds = kinds
        self._every_ms = every_ms
        self._beat = beat
        self._alarm: Alarm | None = None

    @property
    def is_wanted(self) -> bool:
        """Return whether one of the kinds has a reader."""
        return any(self._watch.hub.wanted(kind) for kind in self._kinds)

    def tend(self) -> None:
        """Start or stop, depending on the readers."""
        if self.is_wanted and self._alarm is None:
            clock = self._watch.engine.clock
            self._alarm = clock.call_at(clock.steady_ms() + self._every_ms, self._on_alarm)
        elif not self.is_wanted and self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _on_alarm(self) -> None:
        self._alarm = None
        if self.is_wanted:
            self._beat()
            self.tend()


class Monitors:
    """Watches the events of the hub, and publishes the events that follow from them.

    ``connections`` and ``crons`` return figures for the snapshots.
    """

    def __init__(
        self,
        engine: EngineApi,
        hub: EventHub,
        uptime: Uptime,
        workers: WorkerRegistry,
        thresholds: Thresholds,
        *,
        connections: Callable[[], Connections] = Connections,
        crons: Callable[[], int] = lambda: 0,
    ) -> None:
        self.engine = engine
        self.hub = hub
        self._uptime = uptime
        self._workers = workers
        self._thresholds = thresholds
        self._connections = connections
        self._crons = crons
        self._changed: dict[tuple[str, str], None] = {}  #: queues whose counts may have changed since they were last sent
        self._counts_alarm: Alarm | None = None
        self._counts_pause_ms = COUNTS_EVERY_MS
        self._sent_counts: dict[tuple[str, str], Mapping[str, int]] = {}  #: the counts that were sent last
        self._touched: dict[
            tuple[str, str], int
        ] = {}  #: when something last happened in a queue (steady ms), longest ago first
        self._above: dict[str | tuple[str, str], None] = {}  #: thresholds that are passed already, by name
        self._last_rates = (engine.clock.steady_ms(), engine.stats.pushed, engine.stats.pulled)
        self._pulses = [
            Pulse(self, (Kind.STATS_SNAPSHOT,), STATS_EVERY_MS, self._stats),
            Pulse(self, (Kind.HEALTH_STATUS,), HEALTH_EVERY_MS, self._health),
            Pulse(self, (Kind.STORAGE_STATUS,), STORAGE_EVERY_MS, self._storage),
        ]
        if thresholds.idle_ms:
            self._pulses.append(Pulse(self, (Kind.QUEUE_IDLE,), IDLE_CHECK_EVERY_MS, self._look_for_idle))
        if thresholds.memory_mb or thresholds.storage_mb:
            kinds = (Kind.SERVER_MEMORY_WARNING, Kind.STORAGE_SIZE_WARNING)
            self._pulses.append(Pulse(self, kinds, WARN_EVERY_MS, self._warn))
        hub.on_block.append(self._note_queues)
        hub.on_wish.append(self._tend)

    def _tend(self) -> None:
        for pulse in self._pulses:
            pulse.tend()
        if not self.hub.wanted(Kind.QUEUE_COUNTS):
            self._sent_counts.clear()
        if not self.hub.wanted(Kind.QUEUE_IDLE):
            self._touched.clear()

    def _publish(self, kind: Kind, payload: Mapping[str, object], queue: Queue | None = None) -> None:
        namespace, name = (None, "") if queue is None else queue.key
        self.engine.feed.publish_transient(kind, payload, self.engine.clock.now_ms(), namespace=namespace, queue=name)

    # Queues.

    def _note_queues(self, block: JournalBlock) -> None:
        """Record the queues in which something has happened."""
        if not block.seq:
            return
        counts = self.hub.wanted(Kind.QUEUE_COUNTS)
        sizes = self._thresholds.queue_size and self.hub.wanted(Kind.QUEUE_THRESHOLD)
        if counts or sizes:
            for key in block.queues.values():
                _note(self._changed, key, None)
            if self._counts_alarm is None:
                clock = self.engine.clock
                self._counts_alarm = clock.call_at(clock.steady_ms() + self._counts_pause_ms, self._publish_counts)
        if self._thresholds.idle_ms and self.hub.wanted(Kind.QUEUE_IDLE):
            steady = self.engine.clock.steady_ms()
            for key in block.queues.values():
                self._touched.pop(key, None)
                _note(self._touched, key, steady)

    def _publish_counts(self) -> None:
        self._counts_alarm = None
        changed, self._changed = self._changed, {}
        messages = len(changed) * self.hub.wanted(Kind.QUEUE_COUNTS)
        self._counts_pause_ms = min(COUNTS_EVERY_MS_MAX, max(COUNTS_EVERY_MS, messages // COUNTS_MESSAGES_PER_MS))
        for key in changed:
            queue = self._queue(key)
            if queue is None:
                self._sent_counts.pop(key, None)
                self._above.pop(key, None)
                continue
            counts = self.engine.store.counts(queue)
            if self.hub.wanted(Kind.QUEUE_COUNTS):
                shown = {
                    "waiting": counts.waiting,
                    "active": counts.active,
                    "completed": counts.completed,
                    "failed": counts.dead,
                    "delayed": counts.delayed,
                }
                if self._sent_counts.get(key) != shown:
                    _note(self._sent_counts, key, shown)
                    self._publish(Kind.QUEUE_COUNTS, {"queue": queue.key.name, **shown}, queue)
            limit, size = self._thresholds.queue_size, counts.waiting + counts.delayed
            if limit and self._note_threshold(key, passed=size > limit):
                self._publish(Kind.QUEUE_THRESHOLD, {"queue": queue.key.name, "size": size, "threshold": limit}, queue)

    def _look_for_idle(self) -> None:
        steady = self.engine.clock.steady_ms()
        while self._touched:
            key, at = next(iter(self._touched.items()))
            if at + self._thresholds.idle_ms > steady:
                break
            # A queue can become idle only after something happens in it, whatever it contains now. Then it is recorded
            # again.
            del self._touched[key]
            queue = self._queue(key)
            if queue is not None:
                counts = self.engine.store.counts(queue)
                if not counts.waiting and not counts.active and not counts.delayed:
                    seconds = (steady - at) // 1000
                    self._publish(Kind.QUEUE_IDLE, {"queue": queue.key.name, "idleSeconds": seconds}, queue)

    def _queue(self, key: tuple[str, str]) -> Queue | None:
        """Return a queue, unless it was removed meanwhile."""
        return self.engine.store.queue_find(QueueKey(*key))

    # Figures.

    def _stats(self) -> None:
        engine, stats = self.engine, self.engine.stats
        jobs = engine.store.totals()
        at, pushed, pulled = self._last_rates
        self._last_rates = (engine.clock.steady_ms(), stats.pushed, stats.pulled)
        seconds = max(1, self._last_rates[0] - at) / 1000
        payload = {
            "waiting": jobs.waiting,
            "active": jobs.active,
            "completed": jobs.completed,
            "dlq": jobs.dead,
            "totalPushed": stats.pushed,
            "totalCompleted": stats.completed,
            "totalFailed": stats.failed,
            "pushPerSec": round((stats.pushed - pushed) / seconds, 1),
            "pullPerSec": round((stats.pulled - pulled) / seconds, 1),
            "uptime": self._uptime.seconds(),
            "queues": engine.store.queue_count(),
            "workers": self._workers.active,
            "cronJobs": self._crons(),
        }
        self._publish(Kind.STATS_SNAPSHOT, payload)

    def _health(self) -> None:
        memory = read_memory()
        payload: dict[str, Any] = {
            "ok": self.engine.store.status().writable,
            "uptime": self._uptime.seconds(),
            "memory": {"rss": memory.rss, "heapUsed": memory.heap_used},
            "connections": msgspec.to_builtins(self._connections()),
        }
        self._publish(Kind.HEALTH_STATUS, payload)

    def _storage(self) -> None:
        collections = msgspec.to_builtins(collections_of(self.engine))
        self._publish(Kind.STORAGE_STATUS, {"collections": collections, "diskFull": self.engine.store.status().full})

    # Warnings: once when a threshold is passed, and again only after it was no longer passed.

    def _warn(self) -> None:
        limit = self._thresholds.memory_mb
        if limit:
            memory = read_memory()
            if self._note_threshold("memory", passed=memory.heap_used > limit):
                payload = {"heapUsedMB": memory.heap_used, "thresholdMB": limit, "rssMB": memory.rss}
                self._publish(Kind.SERVER_MEMORY_WARNING, payload)
        limit = self._thresholds.storage_mb
        if limit:
            size = self.engine.store.size_bytes() // limits.MEBIBYTE
            if self._note_threshold("storage", passed=size > limit):
                self._publish(Kind.STORAGE_SIZE_WARNING, {"sizeMB": size, "thresholdMB": limit})

    def _note_threshold(self, what: str | tuple[str, str], *, passed: bool) -> bool:
        """Record whether a threshold is passed. Return whether that is new, so that a warning is due."""
        if not passed:
            self._above.pop(what, None)
            return False
        if what in self._above:
            return False
        _note(self._above, what, None)
        return True


def _note(notes: dict[Any, Any], key: object, value: object) -> None:
    """Store an entry, and remove the oldest if there are too many."""
    if key not in notes and len(notes) >= limits.watched_queues_max:
        del notes[next(iter(notes))]
    notes[key] = value
