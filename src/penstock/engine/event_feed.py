"""The feed: what happens, told to whoever listens inside the server, in the order in which it was committed.

What is kept comes from the journal, block by block, right after its commit. What is not worth keeping (a heartbeat, a snapshot
of figures) is passed on in a block of its own that has no number. While nobody listens, nothing is done at all.
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
    """What workers answered last to jobs that were removed at their end: an event tells of it a moment later.

    Bounded by number and bytes; the oldest go first. It is filled only while somebody listens.
    """

    def __init__(self) -> None:
        self._results: dict[int, bytes] = {}
        self._bytes = 0

    def get(self, job_id: int) -> bytes | None:
        """Return the result of a job, if it is still here."""
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
    """Listeners are called on the event loop and must be quick: whoever has much to do takes a note and does it later."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self.removed = RemovedResults()

    @property
    def is_heard(self) -> bool:
        """Tell whether anybody listens. Who would have to compute something to tell it asks this first."""
        return bool(self._listeners)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear of everything from now on; the returned function ends that, and may be called twice."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def committed(self, work: UnitOfWork) -> None:
        """Pass on what a commit has put into the journal."""
        if work.tx.block is not None:
            if work.results and self.is_heard:
                for job, arrow in work.ended:
                    if arrow is Arrow.COMPLETE_REMOVE and job.id in work.results:
                        self.removed.keep(job.id, work.results[job.id])
            self.publish(work.tx.block)

    def publish(self, block: JournalBlock) -> None:
        """Pass on a block, whoever has committed it."""
        if self._listeners:
            self._tell(block)

    def publish_transient(
        self, kind: EventKind, payload: Mapping[str, object], now_ms: int, *, namespace: str | None = None, queue: str = ""
    ) -> None:
        """Tell something that is not kept. ``namespace`` and ``queue``: whom it is about, if not everybody."""
        if self.is_heard:
            about = {} if namespace is None else {0: (namespace, queue)}
            self.publish(JournalBlock(UNNUMBERED, now_ms, [queue_event(kind, 0, payload)], about))

    def _tell(self, block: JournalBlock) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(block)
            except Exception:
                log.exception("a listener of the feed failed")
