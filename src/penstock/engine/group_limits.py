"""Pausing and limiting the groups of a queue, and asking about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.errors import TooMany
from penstock.core.group_limits import GroupLimits
from penstock.engine.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.engine import Engine
    from penstock.engine.work import Work


class ConfigureGroup(Command[bool]):
    """Change what is set of a group of a queue; answers whether that made a difference.

    ``change`` is given what is set and the steady moment in ms. A queue that does not exist yet is made, if there is something
    to set.
    """

    __slots__ = ("change", "group", "queue")

    def __init__(self, queue: QueueKey, group: str, change: Callable[[GroupLimits, int], GroupLimits]) -> None:
        self.queue = queue
        self.group = group
        self.change = change


class AskGroup(Command[tuple[GroupLimits, int]]):
    """Answer with what is set of a group, as far as it is in force, and with the steady moment that goes for, in ms."""

    __slots__ = ("group", "queue")

    def __init__(self, queue: QueueKey, group: str) -> None:
        self.queue = queue
        self.group = group


async def configure_group(_engine: Engine, work: Work, commands: Sequence[ConfigureGroup]) -> None:
    """Apply a batch of changes to groups."""
    await work.flush()
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        before = await _limits_of(work, queue, command.group)
        after = command.change(before, work.steady_ms)
        if after == before:
            work.answer(command, False)
            continue
        if queue is None:
            queue = await work.tx.queue_open(command.queue)
        if not before.is_set and await work.tx.groups_limited(queue) >= limits.limited_groups_max:
            work.refuse(command, TooMany(f"{limits.limited_groups_max} groups of the queue are paused or limited already."))
            continue
        if not queue.settings.limits_groups:
            # From here on claims look at its groups, and no ready list hands out its jobs.
            settings = msgspec.structs.replace(queue.settings, limits_groups=True)
            await work.tx.queue_save(queue, settings, queue.created_at)
            work.reconfigured.add(queue.key)
        await work.tx.group_save(queue, [(command.group, after)])
        work.ready.add(queue.number)  # a resumed group or a higher limit may have something for those who wait
        work.answer(command, True)


async def ask_group(_engine: Engine, work: Work, commands: Sequence[AskGroup]) -> None:
    """Apply a batch of questions about groups."""
    await work.flush()
    for command in commands:
        found = await _limits_of(work, work.tx.queue_find(command.queue), command.group)
        work.answer(command, (found, work.steady_ms))


async def _limits_of(work: Work, queue: Queue | None, group: str) -> GroupLimits:
    stored = None
    if queue is not None and queue.settings.limits_groups:
        stored = await work.tx.group_load(queue, group)
    return GroupLimits() if stored is None else stored.at(work.steady_ms)
