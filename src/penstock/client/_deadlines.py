"""Timeouts of jobs. A worker ends an attempt a moment before the server does, so that no second attempt runs beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.client._clock import call_in, steady

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.client._held_jobs import HeldJobs
    from penstock.client.context import JobContext

#: How much earlier than the server a worker ends an attempt: this part of the timeout, and at most so many seconds.
EARLIER_PART: Final = 0.1
EARLIER_S_MAX: Final = 1.0
#: A job that was not started after this part of its timeout is released, because too little of the timeout is left.
IN_LINE_PART: Final = 0.5


class Deadlines:
    """Checks the timeouts of a worker's jobs when the next of them may be over. Belongs to a loop.

    ``late`` is called with the jobs that were not started, or have not ended, in time.
    """

    def __init__(
        self, hand: HeldJobs, loop: asyncio.AbstractEventLoop, late: Callable[[Sequence[JobContext]], None]
    ) -> None:
        self._hand = hand
        self._loop = loop
        self._late = late
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def watch(self, contexts: Sequence[JobContext]) -> None:
        """Add jobs that were just claimed. Most have no timeout and cost nothing more."""
        earliest: float | None = None
        for context in contexts:
            timeout_ms = context.info.timeout
            if timeout_ms:
                timeout = timeout_ms / 1000
                context.ends_at = context.taken_at + timeout - min(EARLIER_S_MAX, timeout * EARLIER_PART)
                context.look_at = min(context.ends_at, context.taken_at + timeout * IN_LINE_PART)
                earliest = context.look_at if earliest is None else min(earliest, context.look_at)
        if earliest is not None:
            self._arm(earliest)

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, moment: float) -> None:
        if self._timer is None or moment < self._rings_at:
            self.close()
            self._rings_at = moment
            self._timer = call_in(self._loop, moment - steady(), self._on_alarm)

    def _on_alarm(self) -> None:
        self._timer = None
        now = steady()
        late: list[JobContext] = []
        earliest: float | None = None
        for context in self._hand.held.values():
            if context.look_at is None or context.finished:
                continue
            if context.look_at <= now:
                if not context.begun or context.ends_at <= now:
                    context.look_at = None
                    late.append(context)
                    continue
                context.look_at = context.ends_at
            earliest = context.look_at if earliest is None else min(earliest, context.look_at)
        if late:
            self._late(late)
        if earliest is not None:
            self._arm(earliest)
