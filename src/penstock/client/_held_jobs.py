"""What a worker has in hand, and how fast it gets through it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.client._clock import steady
from penstock.client._worker_options import AHEAD_S, STALE_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.client.context import JobContext


class Throughput:
    """How many jobs a worker does per second, lately."""

    def __init__(self) -> None:
        self._rate = 0.0
        self._since = steady()
        self._count = 0

    @property
    def rate(self) -> float:
        """Jobs per second. What was fast a while ago says nothing about now."""
        passed = steady() - self._since
        return self._count / passed if passed > STALE_S else self._rate

    def add(self, count: int) -> None:
        """Note that jobs were done."""
        self._count += count
        passed = steady() - self._since
        if passed >= AHEAD_S / 2:
            now = self._count / passed
            self._rate = now if passed > STALE_S else (self._rate + now) / 2
            self._since, self._count = self._since + passed, 0


class HeldJobs:
    """The jobs of a worker, from the pull until they are settled. Belongs to the loop it is made in.

    ``count``: jobs that handlers or the server still have to do with. ``held``, by token: those whose lease is ours.
    """

    def __init__(self) -> None:
        self.held: dict[str, JobContext] = {}
        self.count = 0
        self.pace = Throughput()
        self.room = asyncio.Event()  #: set when jobs have left
        self.empty = asyncio.Event()  #: set when the last has

    def take(self, contexts: Sequence[JobContext]) -> None:
        """Have more jobs."""
        for context in contexts:
            self.held[context.info.token] = context
        self.count += len(contexts)

    def holds(self, context: JobContext) -> bool:
        """Tell whether the lease of a job is ours, as far as we know."""
        return context.info.token in self.held

    def drop(self, context: JobContext) -> bool:
        """Note that a lease is lost; False if it was not ours anyway. Its handler may still be at it, so it counts on."""
        return self.held.pop(context.info.token, None) is not None

    def leave(self, contexts: Sequence[JobContext]) -> None:
        """Forget jobs that are settled, and make room for others."""
        for context in contexts:
            self.held.pop(context.info.token, None)
        self.count -= len(contexts)
        self.pace.add(len(contexts))
        self.room.set()
        if not self.count:
            self.empty.set()
