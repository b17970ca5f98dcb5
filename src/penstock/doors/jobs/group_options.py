"""The limits that a worker requests for all groups of its queue when it pulls: ``group`` of bunqueue 2.9."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.core.group_limits import GroupDefaults
from penstock.engine.queues.group_limits import AskForGroups

if TYPE_CHECKING:
    from penstock.doors.http.body import BodyReader
    from penstock.doors.jobs.command_call import CommandCall
    from penstock.doors.jobs.job_handlers import JobHandlers
    from penstock.doors.jobs.wire import requests


class GroupedPull(Protocol):
    """The fields of a pull."""

    group: requests.GroupOptions | None


async def ask_for_groups(jobs: JobHandlers, call: CommandCall, queue: str, reader: BodyReader[Any]) -> None:
    """Set the limits for all groups that the worker requests, before a pull. Nothing is written if they are set already."""
    if "group" not in call.message:
        return
    pull: GroupedPull = reader.parse(await call.body())
    options = pull.group
    if options is None or (options.concurrency is None and options.limit is None):
        return
    rate = () if options.limit is None else (options.limit.max, options.limit.duration)
    asked = GroupDefaults(options.concurrency, *rate)
    key = jobs.queue_key(call, queue)
    found = jobs.store.queue_find(key)
    held = None if found is None else found.settings.group_defaults
    if held is None or held.joined(asked, jobs.engine.of(key).clock.now_ms()) != held:
        await jobs.engine.run(AskForGroups(key, asked))
