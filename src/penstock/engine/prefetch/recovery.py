"""Queues whose ready list was lost: no claim is served until the jobs of the list are back at their places in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.core.clock import pause
from penstock.core.errors import ServerError
from penstock.engine.prefetch.commands import Reclaim

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.core.queue import Queue
    from penstock.engine.jobs.claim import Claim
    from penstock.engine.prefetch.context import CacheContext


class Recovery:
    """Holds claims at such queues, until all servers have recorded what they handed out.

    A server that has died, or does not reach the database, is waited for no longer than ``limits.fast_grace_ms``.
    """

    def __init__(self, path: CacheContext) -> None:
        self._path = path
        self._held: list[tuple[int, Claim]] = []  #: each with the number of its queue
        self._running = False
        self._closed = False

    def hold(self, queue: Queue, claims: list[Claim]) -> None:
        """Hold claims until their queue is complete again. Claims that wait in ``ClaimWaiters`` stay there."""
        self._held += [(queue.number, claim) for claim in claims]
        if not self._running:
            self._running = True
            self._path.start(self._recover(), "penstock-fast-recovery")

    def close(self) -> None:
        """Stop waiting; claims that are held are answered without a job."""
        self._closed = True

    async def _recover(self) -> None:
        try:
            while not self._closed:
                try:
                    await self._path.engine.run(Reclaim())
                except ServerError:  # the claims get the error when they are run
                    break
                self._let_go(self._path.lost)
                if not self._held:
                    break
                await pause(self._path.clock, limits.fast_recovery_pause_ms)
        finally:
            self._running = False
            self._let_go(())

    def _let_go(self, lost: Collection[int]) -> None:
        held, self._held = self._held, []
        for number, claim in held:
            if claim.future.done():
                continue
            if self._closed:
                claim.future.set_result([])
            elif number in lost:
                self._held.append((number, claim))
            else:
                self._path.engine.put_back(claim)
