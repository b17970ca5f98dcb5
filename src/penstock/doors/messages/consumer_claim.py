"""Claims messages for push consumers. A claim that waits can be cancelled without losing messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core import limits
from penstock.engine.jobs.claim import Claim
from penstock.engine.jobs.claim_waiters import PendingClaim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.job import Delivery
    from penstock.core.queue import QueueKey
    from penstock.engine.api import EngineApi


class ConsumerClaim:
    """One waiting claim of a queue."""

    def __init__(self, engine: EngineApi, queue: QueueKey) -> None:
        self.stopped = False
        self._engine = engine
        self._queue = queue
        self._wait: PendingClaim | None = None

    async def take(self, count: int, lease_ms: int) -> Sequence[Delivery]:
        """Wait for messages and return up to ``count``, leased for ``lease_ms``.

        The result is empty if ``stop`` was called, or if the wait time is over and the caller should claim again. Messages
        that are claimed for a caller that was cancelled are released. Raises the error with which the engine refuses the
        claim.
        """
        if self.stopped:
            return ()
        claim = Claim(self._queue, count, wait_ms=limits.subscription_wait_ms, lease_ms=lease_ms)
        wait = self._wait = PendingClaim(self._engine, claim).submit()
        try:
            return await wait.answer()
        finally:
            self._wait = None

    def stop(self) -> None:
        """Claim no more messages. A waiting ``take`` returns."""
        self.stopped = True
        if self._wait is not None:
            self._wait.give_up()
