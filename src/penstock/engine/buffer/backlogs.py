"""What each namespace has in an enqueue buffer, and when it may add more.

Two rules keep one namespace from delaying the buffered pushes of others:

* A namespace may have its share of the buffer (``namespace_share``), in jobs and in bytes.
* The log is stored in the order in which it was written. So while several namespaces are active, a namespace with
  ``limits.buffer_ahead_weight`` in the log writes its next push when some of that is stored. A push of another namespace is
  then stored after little of it. While the database fails, nothing waits: the buffer is there for that time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol

from penstock.core import limits
from penstock.core.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.queue import QueueKey
    from penstock.engine.context import EngineContext


class StoredWaits(Protocol):
    """Waits until records of the log are stored: see ``BufferCapacity``."""

    async def stored(self, number: int, /) -> None:
        """Wait until a record of the log, and all earlier ones, are stored."""


class BufferedRecord:
    """One record that is not stored: its number, and what it counts as."""

    __slots__ = ("bytes", "counts", "jobs", "number")

    def __init__(self, number: int, size: int, counts: Mapping[QueueKey, int]) -> None:
        self.number = number
        self.bytes = size
        self.counts = counts  #: jobs of each queue
        self.jobs = sum(counts.values())

    @property
    def namespace(self) -> str:
        """The namespace of its first queue, as for commands."""
        return next(iter(self.counts)).namespace

    @property
    def weight(self) -> int:
        """Its cost, as that of commands."""
        return self.jobs + self.bytes // limits.weight_bytes


class Backlog:
    """What one namespace has in the buffer."""

    __slots__ = ("bytes", "jobs", "line", "numbers", "waiting", "waiting_jobs", "weight")

    def __init__(self) -> None:
        self.numbers: deque[int] = deque()  #: of its records, in order
        self.jobs = 0
        self.bytes = 0
        self.weight = 0
        self.line = asyncio.Lock()  #: its pushes wait one behind the other
        self.waiting = 0  #: pushes in that line ...
        self.waiting_jobs = 0  #: ... and their jobs


class Backlogs:
    """The backlogs of all namespaces of an enqueue buffer."""

    def __init__(self, engine: EngineContext, waits: StoredWaits) -> None:
        self._engine = engine
        self._waits = waits
        self._by_namespace: dict[str, Backlog] = {}

    def add(self, record: BufferedRecord) -> None:
        """Count a record that was written to the log."""
        backlog = self._by_namespace.get(record.namespace)
        if backlog is None:
            backlog = self._by_namespace[record.namespace] = Backlog()
        backlog.numbers.append(record.number)
        backlog.jobs += record.jobs
        backlog.bytes += record.bytes
        backlog.weight += record.weight

    def remove(self, record: BufferedRecord) -> None:
        """Stop counting a record."""
        backlog = self._by_namespace[record.namespace]
        if backlog.numbers[0] == record.number:
            backlog.numbers.popleft()
        else:
            backlog.numbers.remove(record.number)
        backlog.jobs -= record.jobs
        backlog.bytes -= record.bytes
        backlog.weight -= record.weight
        self._tidy(record.namespace, backlog)

    def check_share(self, namespace: str, jobs: int, *, taken: int, taken_bytes: int) -> None:
        """Raise NamespaceLimit if a namespace has its share of the buffer. ``taken``: of the buffer, in jobs and bytes."""
        backlog = self._by_namespace.get(namespace)
        held, held_bytes = (0, 0) if backlog is None else (backlog.jobs, backlog.bytes)
        shares, more = self._engine.pool_shares, jobs - 1
        shares.check("buffered jobs", namespace, most=limits.buffer_jobs_max, taken=taken + more, held=held + more)
        most = limits.buffer_bytes_max
        shares.check("buffered bytes", namespace, most=most, taken=taken_bytes, held=held_bytes)

    async def turn(self, namespace: str, jobs: int, *, taken: int, taken_bytes: int) -> None:
        """Wait until a namespace may write its next push to the log. The caller writes it before it awaits anything else.

        Raises NamespaceLimit as ``check_share`` does: pushes that wait count, too.
        """
        backlog = self._by_namespace.get(namespace)
        if backlog is None or not (backlog.waiting or self._is_ahead(backlog)):
            return
        waiting = backlog.waiting_jobs
        self.check_share(namespace, jobs + waiting, taken=taken, taken_bytes=taken_bytes)
        backlog.waiting += 1
        backlog.waiting_jobs += jobs
        try:
            async with backlog.line:
                while self._is_ahead(backlog):
                    try:
                        await self._waits.stored(backlog.numbers[0])
                    except ServerError:  # nothing can be stored now
                        break
        finally:
            backlog.waiting -= 1
            backlog.waiting_jobs -= jobs
            self._tidy(namespace, backlog)

    def _is_ahead(self, backlog: Backlog) -> bool:
        return backlog.weight >= limits.buffer_ahead_weight and self._engine.fair_share.shared

    def _tidy(self, namespace: str, backlog: Backlog) -> None:
        if not backlog.numbers and not backlog.waiting:
            self._by_namespace.pop(namespace, None)
