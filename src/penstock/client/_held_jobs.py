"""The jobs that a worker holds, and its throughput."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client._clock import steady
from penstock.client._worker_options import AHEAD_S, STALE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.context import JobContext


class Throughput:
    """The number of jobs per second that a worker has finished recently."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._since = steady()
        self._count = 0

    @property
    def rate(self) -> float:
        """Jobs per second. Old figures are discarded, because they do not describe the present."""
        passed = steady() - self._since
        return self._count / passed if passed > STALE_S else self._rate

    def add(self, count: int) -> None:
        """Count finished jobs."""
        self._count += count
        passed = steady() - self._since
        if passed >= AHEAD_S / 2:
            now = self._count / passed
            self._rate = now if passed > STALE_S else (self._rate + now) / 2
            self._since, self._count = self._since + passed, 0


class HeldJobs:
    """The jobs of a worker, from the pull until they are settled. Belongs to the loop in which it is created.

    ``count``: jobs that are not settled yet, or whose handlers still run. ``held``: those whose lease is valid, by token.
    """

    def __init__(self) -> None:
        self.held: dict[str, JobContext] = {}
        self.count = 0
        self.pace = Throughput()
        self.room = asyncio.Event()  #: set when jobs were removed
        self.empty = asyncio.Event()  #: set when the last job was removed

    def take(self, contexts: Sequence[JobContext]) -> None:
        """Add jobs."""
        for context in contexts:
            self.held[context.info.token] = context
        self.count += len(contexts)

    def holds(self, context: JobContext) -> bool:
        """Return whether the lease of a job is valid, by the clock of this worker."""
        return context.info.token in self.held

    def drop(self, context: JobContext) -> bool:
        """Record that a lease is lost; False if it was lost before. Its handler may still run, so the job still counts."""
        return self.held.pop(context.info.token, None) is not None

    def leave(self, contexts: Sequence[JobContext]) -> None:
        """Remove jobs that are settled, and make room for others."""
        for context in contexts:
            self.held.pop(context.info.token, None)
        self.count -= len(contexts)
        self.pace.add(len(contexts))
        self.room.set()
        if not self.count:
            self.empty.set()
