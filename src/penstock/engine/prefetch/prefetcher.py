"""The prefetcher: keeps enough jobs on the ready list of one hot queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import FastPathFailed, FastPathFull, ServerError
from penstock.engine.prefetch.commands import Prefetch, TakeBack

if TYPE_CHECKING:
    from penstock.core.queue import Queue
    from penstock.engine.prefetch.context import CacheContext


class Prefetcher:
    """The prefetcher of one ``ClaimQueue``."""

    def __init__(self, path: CacheContext, queue: Queue) -> None:
        self._path = path
        self._key = queue.key
        self._number = queue.number
        self.epoch: int | None = path.engine.hot.get(queue.number)  #: epoch of the list; None if there is none
        self.depth = 0  #: jobs on the list, as far as this server knows
        self.bytes = 0  #: their size, likewise
        self._is_held_back = False  #: the next job is too large for the list, so nothing is fetched before it is needed
        self._lease_ms = 0  #: the longest lease that a claim requested
        self._fetching: asyncio.Task[bool] | None = None
        self._fills = 0
        self._rate = 0.0  #: jobs handed out by this server per ms, in recent time
        self._counted_at = path.clock.steady_ms()
        self._counted = 0

    async def close(self) -> None:
        """Wait until fetching ends."""
        if self._fetching is not None:
            await asyncio.gather(self._fetching, return_exceptions=True)

    def last_for(self, lease_ms: int) -> None:
        """Make jobs that are set aside from now on last for a lease of this length (ms)."""
        self._lease_ms = max(self._lease_ms, lease_ms)

    def count(self, given: int) -> None:
        """Count jobs that were handed out, to measure the demand."""
        self._counted += given
        steady = self._path.clock.steady_ms()
        if steady - self._counted_at >= limits.fast_rate_ms:
            rate = self._counted / (steady - self._counted_at)
            self._rate = rate if not self._rate else (self._rate + rate) / 2
            self._counted, self._counted_at = 0, steady

    def _enough(self) -> int:
        """Return how many jobs should be on the list: the demand of a short time."""
        rate = max(self._rate, self._counted / limits.fast_rate_ms)
        return max(limits.fast_jobs_min, min(limits.fast_jobs_max, int(rate * limits.fast_ahead_ms)))

    @property
    def is_low(self) -> bool:
        """Return whether more jobs should be on the list."""
        has_room = self.bytes < limits.fast_list_bytes_max // 2 and not self._is_held_back
        return self.depth < self._enough() // 2 and has_room and not self._path.lists.link.is_full

    def fetch_soon(self) -> None:
        """Start fetching, while the jobs on the list are handed out."""
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(0, is_empty=False), name="penstock-prefetch")
            self._fetching.add_done_callback(self._fetched)

    def _fetched(self, task: asyncio.Task[bool]) -> None:
        self._fetching = None
        if not task.cancelled() and isinstance(task.exception(), FastPathFailed):
            self._path.failed()

    async def fetch_now(self, wanted: int, *, is_empty: bool) -> bool:
        """Fetch, or wait for a fetch in progress. Return whether to read the list again."""
        if self._fetching is not None:
            await asyncio.wait([self._fetching])
            return True
        return await self._fetch(wanted, is_empty=is_empty)

    async def _fetch(self, wanted: int, *, is_empty: bool) -> bool:
        """Set jobs aside, at least as many as are wanted if their bytes allow it, and put them on the list.

        False: the list is empty and there are no jobs for it, or it may not become longer. The database serves the queue.
        """
        path = self._path
        if path.lists.link.is_full:
            return False
        holder = path.new_holder()
        plan = await path.lists.plan(path.generation, self._number, holder)
        if plan is None:  # another server is fetching
            await pause(path.clock, limits.fast_pause_ms)
            return await self._fetch(wanted, is_empty=is_empty) if self.epoch is None else True
        if is_empty and plan.length:  # another server has just filled it
            await path.lists.unlock(path.generation, self._number, holder)
            return True
        self.bytes = plan.bytes
        bytes_max = min(limits.fast_list_bytes_max - plan.bytes, path.room_for_bytes(self._key.namespace))
        if bytes_max <= 0:
            await path.lists.unlock(path.generation, self._number, holder)
            return False
        count = max(self._enough() - plan.length, limits.fast_jobs_min, wanted)
        lease_ms = self._lease_ms + limits.fast_margin_ms
        try:
            found = await path.engine.run(Prefetch(self._key, count, lease_ms, bytes_max=bytes_max, is_empty=is_empty))
            if found.announced:  # every later push makes an offer, and every earlier push is seen
                found = await path.engine.run(Prefetch(self._key, count, lease_ms, bytes_max=bytes_max, is_empty=is_empty))
        except ServerError:
            await path.lists.unlock(path.generation, self._number, holder)
            raise
        self.epoch = found.epoch
        self._is_held_back = found.too_large
        if found.too_large or (not found.jobs and is_empty):
            await path.lists.unlock(path.generation, self._number, holder)
            return False
        size = None
        if found.generation == path.generation:
            now = path.clock.steady_ms()
            try:
                size = await path.lists.fill(
                    path.generation, self._number, plan, found.jobs, now_ms=now, cut_at=found.cut_at
                )
            except FastPathFull:
                await path.engine.run(TakeBack([(job.id, job.token) for job, _ in found.jobs]))
                await path.lists.unlock(path.generation, self._number, holder)
                path.out_of_memory()
                return False
        if size is None:  # the list was given up, or taken back, meanwhile
            await path.engine.run(TakeBack([(job.id, job.token) for job, _ in found.jobs]))
            self.epoch = None
            return True
        self.depth, self.bytes = size
        self._fills += 1
        if self._fills > 1:
            path.worked()
        return True
