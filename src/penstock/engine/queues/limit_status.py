"""The limits of a queue, and how much of them is left now."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.engine.command import QueueCommand
from penstock.engine.jobs.queue_limits import load_bucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.queue import QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork

#: Value by which bunqueue reports that there is no rate limit.
NO_RATE_LIMIT: Final = -2


class LimitStatus(NamedTuple):
    """The limits of a queue. ``wait_ms``: until the rate limit lets a job pass, or until it ends if it does; -2: none."""

    rate_limit: int | None
    window_ms: int
    wait_ms: int
    concurrency: int | None
    maxed: bool  #: as many jobs are active as are allowed


class AskLimits(QueueCommand[LimitStatus]):
    """Return the limits of a queue. ``after``: the rate limit counts as free until so many of its jobs were claimed."""

    __slots__ = ("after",)

    def __init__(self, queue: QueueKey, after: int | None = None) -> None:
        super().__init__(queue)
        self.after = after


async def ask_limits(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AskLimits]) -> None:
    """Apply a batch of lookups of limits."""
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is None:
            work.answer(command, LimitStatus(None, 0, NO_RATE_LIMIT, None, maxed=False))
            continue
        settings = queue.settings
        maxed = settings.concurrency is not None and await work.tx.count_active(queue) >= settings.concurrency
        bucket = await load_bucket(work, queue)
        if bucket is None or settings.rate_limit is None:
            work.answer(command, LimitStatus(None, 0, NO_RATE_LIMIT, settings.concurrency, maxed=maxed))
            continue
        if settings.rate_limit_until is not None:
            wait_ms = max(0, settings.rate_limit_until - work.now_ms)
        else:
            bucket.available(work.steady_ms)
            taken = settings.rate_limit - bucket.tokens
            is_free = bucket.tokens >= 1 or (command.after is not None and taken < command.after)
            wait_ms = 0 if is_free else math.ceil((1 - bucket.tokens) * bucket.window_ms / bucket.limit)
        status = LimitStatus(settings.rate_limit, settings.rate_window_ms, wait_ms, settings.concurrency, maxed=maxed)
        work.answer(command, status)
