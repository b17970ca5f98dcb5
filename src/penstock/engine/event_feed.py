"""The event feed: passes committed events to listeners inside the server, in the order of the commits.

Events of the journal come block by block, right after their commit. Events that are not stored (a heartbeat, a snapshot of
figures) are passed on in blocks of their own, without numbers. While there are no listeners, nothing is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from penstock.core import limits
from penstock.core.events import queue_event
from penstock.core.lifecycle import Arrow
from penstock.store.contract import JournalBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.events import EventKind
    from penstock.engine.unit_of_work import UnitOfWork

    Listener = Callable[[JournalBlock], None]

log = structlog.get_logger("penstock.feed")

#: The number of a block that is not part of the journal.
UNNUMBERED = 0


class RemovedResults:
    """Results of jobs that were removed at their end, for the events that are made a moment later.

    Bounded by number and bytes; the oldest are removed first. It is filled only while there are listeners.
    """

    def __init__(self) -> None:
        self._results: dict[int, bytes] = {}
        self._bytes = 0

    def get(self, job_id: int) -> bytes | None:
        """Return the result of a job, if it is still kept."""
        return self._results.get(job_id)

    def keep(self, job_id: int, result: bytes) -> None:
        """Keep the result of a job for a while."""
        if len(result) > limits.event_data_bytes_max:
            return
        self._bytes += len(result) - len(self._results.pop(job_id, b""))
        self._results[job_id] = result
        while len(self._results) > limits.removed_results_max or self._bytes > limits.removed_results_bytes_max:
            self._bytes -= len(self._results.pop(next(iter(self._results))))


class EventFeed:
    """Calls its listeners on the event loop. They must return quickly, and do longer work later."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.removed = RemovedResults()

    @property
    def has_listeners(self) -> bool:
        """Return whether there are listeners. Check this before computing something only for an event."""
        return bool(self._listeners)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call a function with each block from now on. The returned function ends that, and may be called twice."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def committed(self, work: UnitOfWork) -> None:
        """Pass on the journal block of a commit."""
        if work.tx.block is not None:
            if work.results and self.has_listeners:
                for job, arrow in work.ended:
                    if arrow is Arrow.COMPLETE_REMOVE and job.id in work.results:
                        self.removed.keep(job.id, work.results[job.id])
            self.publish(work.tx.block)

    def publish(self, block: JournalBlock) -> None:
        """Pass on a block of any server."""
        if self._listeners:
            self._notify(block)

    def publish_transient(
        self, kind: EventKind, payload: Mapping[str, object], now_ms: int, *, namespace: str | None = None, queue: str = ""
    ) -> None:
        """Publish an event that is not stored.

        ``namespace``, ``queue``: what it is about; without them, it is for all listeners.
        """
        if self.has_listeners:
            about = {} if namespace is None else {0: (namespace, queue)}
            self.publish(JournalBlock(UNNUMBERED, now_ms, [queue_event(kind, 0, payload)], about))

    def _notify(self, block: JournalBlock) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(block)
            except Exception:
                log.exception("a listener of the feed failed")
