"""Pausing and limiting the groups of a queue, and reading their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core import limits
from penstock.core.errors import ServerError, TooMany
from penstock.core.group_limits import NOT_LIMITED, GroupDefaults, GroupLimits
from penstock.engine.command import QueueCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.core.queue import Queue, QueueKey
    from penstock.engine.context import EngineContext
    from penstock.engine.unit_of_work import UnitOfWork


class ConfigureGroup(QueueCommand[bool]):
    """Change the limits of a group of a queue; answers whether that made a difference.

    ``change`` gets the present limits and the steady moment in ms. A queue that does not exist yet is created, if there is
    something to set.
    """

    __slots__ = ("change", "group")

    def __init__(self, queue: QueueKey, group: str, change: Callable[[GroupLimits, int], GroupLimits]) -> None:
        super().__init__(queue)
        self.group = group
        self.change = change


class AskForGroups(QueueCommand[None]):
    """Set default limits for all groups of a queue, on request of a worker. A limit that is set for a group itself is kept.

    The defaults end ``limits.group_defaults_ms`` after the last request. If several workers send limits, the stricter one
    applies. A queue that does not exist yet is created.
    """

    __slots__ = ("asked",)

    def __init__(self, queue: QueueKey, asked: GroupDefaults) -> None:
        super().__init__(queue)
        self.asked = asked


class AskGroup(QueueCommand[tuple[GroupLimits, int]]):
    """Return the limits of a group that are in force, and the steady moment (ms) at which they were read."""

    __slots__ = ("group",)

    def __init__(self, queue: QueueKey, group: str) -> None:
        super().__init__(queue)
        self.group = group


async def configure_group(_engine: EngineContext, work: UnitOfWork, commands: Sequence[ConfigureGroup]) -> None:
    """Apply a batch of changes to groups."""
    await work.flush()
    limited: dict[int, int] = {}  #: number of limited groups of each queue; counted first, before any group is locked
    for command in commands:
        queue = work.tx.queue_find(command.queue)
        if queue is not None and queue.number not in limited:
            limited[queue.number] = await work.tx.groups_limited(queue)
        before = await _limits_of(work, queue, command.group)
        after = command.change(before, work.steady_ms)
        if after == before:
            work.answer(command, False)
            continue
        if queue is None:
            try:
                queue = await work.tx.queue_open(command.queue)
            except ServerError as error:
                work.refuse(command, error)
                continue
            limited[queue.number] = await work.tx.groups_limited(queue)
        if not before.is_set and limited[queue.number] >= limits.limited_groups_max:
            work.refuse(
                command,
                TooMany(
                    f"{limits.limited_groups_max} groups of the queue are paused or limited already. Remove the limits of some."
                ),
            )
            continue
        if not queue.settings.limits_groups:
            # From here on claims check its groups, and no ready list hands out its jobs.
            await _save(work, queue, limits_groups=True)
        await work.tx.group_save(queue, [(command.group, after)])
        limited[queue.number] += after.is_set - before.is_set
        if not after.is_set:
            await forget_unused(work, queue)
        work.ready.add(queue.number)  # a resumed group or a higher limit may have jobs for waiting claims
        work.answer(command, True)


async def ask_for_groups(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AskForGroups]) -> None:
    """Apply a batch of default limits that workers request."""
    for command in commands:
        try:
            queue = await work.tx.queue_open(command.queue)
        except ServerError as error:
            work.refuse(command, error)
            continue
        before = queue.settings.group_defaults
        after = (GroupDefaults() if before is None else before).joined(command.asked, work.now_ms)
        if after != before:
            await _save(work, queue, limits_groups=True, group_defaults=after)
            work.ready.add(queue.number)
        work.answer(command, None)


async def forget_unused(work: UnitOfWork, queue: Queue) -> None:
    """Remove the default limits if they have ended. If no group has a limit any more, record that groups are not limited.

    After that, claims do not check groups. So no command may add a limit until the commit.
    """
    settings = work.tx.queue_by_number(queue.number).settings
    if not settings.limits_groups:
        return
    defaults = settings.group_defaults
    if defaults is not None:
        if work.now_ms < defaults.until:
            return
        await _save(work, queue, group_defaults=None)
    if not await work.tx.group_page(queue, "", 1):
        await work.tx.groups_limited(queue)
        if not await work.tx.group_page(queue, "", 1):
            await _save(work, queue, limits_groups=False)


async def reopen(work: UnitOfWork, queue: Queue) -> int | None:
    """Reopen groups whose rate limit or pause has ended, before a claim. Return the steady moment (ms) of the next one."""
    defaults = queue.settings.group_defaults
    if defaults is not None and work.now_ms >= defaults.until:
        await _save(work, queue, group_defaults=None)
    return await work.tx.group_reopen(queue, limits.groups_reopened_max)


async def _save(work: UnitOfWork, queue: Queue, **changes: object) -> None:
    queue = work.tx.queue_by_number(queue.number)
    await work.tx.queue_save(queue, msgspec.structs.replace(queue.settings, **changes), queue.created_at)
    work.reconfigured.add(queue.key)


async def ask_group(_engine: EngineContext, work: UnitOfWork, commands: Sequence[AskGroup]) -> None:
    """Apply a batch of lookups of groups."""
    await work.flush()
    for command in commands:
        found = await _limits_of(work, work.tx.queue_find(command.queue), command.group)
        work.answer(command, (found, work.steady_ms))


async def _limits_of(work: UnitOfWork, queue: Queue | None, group: str) -> GroupLimits:
    stored = None
    if queue is not None and queue.settings.limits_groups:
        stored = await work.tx.group_load(queue, group)
    if queue is None or stored is None:
        return NOT_LIMITED
    return stored.at(work.steady_ms, defaults=queue.settings.group_defaults)
