"""The path of a command from its caller to the batcher. It is built once, when the engine is made, in a fixed order.

1. **Quota** (``metered``): a push is counted for its namespace, and refused if the quota is used up. On several
   shards it comes before all of them, because a quota is for the whole server.
2. **Enqueue buffer** (``EnqueueBuffer.stage``): pushes to queues in ``buffered`` mode are answered from the log.
3. **Ready lists** (``ReadyCache.stage``): claims at hot queues are served from Redis.
4. **Batcher** (``Batcher.submit``): everything else waits for the next transaction.

A stage that is not configured is not part of the chain and costs nothing: without any, ``Engine.run`` is ``Batcher.submit``.

Commands of the server itself begin at a later stage, each for a reason:

- ``Engine.run_in_background`` begins at the batcher. It is for commands that are neither pushes nor claims: no stage handles
  them.
- ``Engine.put_back`` begins at the batcher, too. Its command has passed the quota before, so it is not counted again. A claim
  comes from the ready lists, which cannot serve it.
- Jobs that crons and finished jobs push are made inside a transaction. They are counted there (``Engine.quotas``).
- Commands that a ``ShardedEngine`` sends to its shards begin at their buffers, because they were counted as a whole.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from penstock.core.errors import OutcomeUnknown, PartlyDone, ServerError
from penstock.engine.jobs.push import Push, PushAcross

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.engine.command import Command, Submit
    from penstock.engine.quota_check import QuotaCheck

T = TypeVar("T")


class SubmitStage(Protocol):
    """A part of the chain that answers some commands itself, and passes all others to the next one."""

    def stage(self, following: Submit) -> Submit:
        """Return a function that takes commands, and passes those that this stage does not answer to ``following``."""


def submit_chain(
    last: Submit,
    *,
    quotas: QuotaCheck | None = None,
    buffer: SubmitStage | None = None,
    ready_lists: SubmitStage | None = None,
) -> Submit:
    """Return the function that passes commands through all configured stages to ``last``."""
    submit = last
    if ready_lists is not None:
        submit = ready_lists.stage(submit)
    if buffer is not None:
        submit = buffer.stage(submit)
    if quotas is not None:
        submit = metered(submit, quotas)
    return submit


def metered(following: Submit, quotas: QuotaCheck) -> Submit:
    """Return a function that counts a push before it is submitted, and gives the quota back if none of its jobs was stored."""

    async def push_when_admitted(push: Command[Any], counts: Mapping[str, int]) -> Any:
        await quotas.admit(counts)
        try:
            return await following(push)
        except (OutcomeUnknown, PartlyDone):  # some of it may be stored
            raise
        except ServerError:
            quotas.refund(counts)
            raise

    def submit(command: Command[T]) -> asyncio.Future[T]:
        if isinstance(command, Push | PushAcross) and (counts := _counts(command, quotas)):
            return asyncio.ensure_future(push_when_admitted(command, counts))
        return following(command)

    return submit


def _counts(push: Push | PushAcross, quotas: QuotaCheck) -> dict[str, int]:
    """Return the number of jobs in a push for each namespace that has a quota."""
    counts: dict[str, int] = {}
    for queue, jobs in ((push.queue, push.jobs),) if isinstance(push, Push) else push.parts:
        if quotas.of(queue.namespace) is not None:
            counts[queue.namespace] = counts.get(queue.namespace, 0) + len(jobs)
    return counts
