"""The way of a command from its caller to the batcher: built once, when the engine is made, always in the same order.

1. **Quota** (``quota_check.metered``): a push is counted for its namespace, and refused if the quota is used up. On several
   shards it is in front of all of them, because a quota is for the whole server.
2. **Enqueue buffer** (``EnqueueBuffer.stage``): pushes to queues in ``buffered`` mode are answered from the log.
3. **Ready lists** (``ReadyCache.stage``): claims at hot queues are served from Redis.
4. **Batcher** (``Batcher.submit``): everything else waits for the next transaction.

A stage that is not configured is not part of the chain and costs nothing: without any, ``engine.run`` is ``Batcher.submit``.

Commands of the server itself begin further on, each for its reason:

- ``Engine.run_unheard`` begins at the batcher. It is for commands that are neither pushes nor claims: no stage is about them.
- ``Engine.put_back`` begins at the batcher, too. Its command has passed the quota before, so it is not counted again. A claim
  comes from the ready lists, which cannot serve it.
- Jobs that crons and finished jobs push are made inside a transaction. They are counted there (``Engine.quotas``).
- What a ``ShardedEngine`` asks of its shards begins at their buffers: it was counted as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.engine.quota_check import metered

if TYPE_CHECKING:
    import asyncio

    from penstock.engine.command import Command
    from penstock.engine.quota_check import QuotaCheck

T = TypeVar("T")


class Submit(Protocol):
    """Takes a command; awaiting the future gives the answer, or raises why there is none."""

    def __call__(self, command: Command[T], /) -> asyncio.Future[T]:
        """Submit a command."""


class SubmitStage(Protocol):
    """A part of the chain that answers some commands itself, and gives all others to the next one."""

    def stage(self, following: Submit) -> Submit:
        """Return what takes commands, with what takes those that this stage does not answer."""


def submit_chain(
    last: Submit,
    *,
    quotas: QuotaCheck | None = None,
    buffer: SubmitStage | None = None,
    ready_lists: SubmitStage | None = None,
) -> Submit:
    """Return the way of commands through all stages there are to ``last``."""
    submit = last
    if ready_lists is not None:
        submit = ready_lists.stage(submit)
    if buffer is not None:
        submit = buffer.stage(submit)
    if quotas is not None:
        submit = metered(submit, quotas)
    return submit
