"""Crons: jobs that are pushed at each tick of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from penstock.client import _replies as replies
from penstock.client._durations import Duration, duration_ms
from penstock.client._names import new_queue
from penstock.client._plain import encode, without_none
from penstock.client._request import ApiCall, nothing, path
from penstock.client._task_call import TaskCall
from penstock.client.options import cron_fields

if TYPE_CHECKING:
    from penstock.client._async.transport import AsyncTransport
    from penstock.client._task_call import CalledTask
    from penstock.client.models import Cron
    from penstock.client.options import Backoff, CronOptions


class AsyncCrons:
    """The crons of a namespace, by name. An attribute of the client: ``client.crons``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._send = transport.send

    async def add(
        self,
        name: str,
        queue: str | CalledTask,
        data: Any = None,
        *,
        schedule: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        priority: int | None = None,
        limit: int | None = None,
        unique_key: str | None = None,
        immediately: bool = False,
        prevent_overlap: bool = True,
        skip_missed: bool = True,
        skip_if_no_worker: bool = False,
        max_attempts: int | None = None,
        backoff: Duration | Backoff | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109, of its jobs
        **options: Unpack[CronOptions],
    ) -> Cron:
        """Add a cron, or change the one with this name. A program may do this at each start.

        ``schedule``: five or six fields, or ``@daily`` and similar names; or ``every``, an interval. ``timezone``: an IANA
        name; UTC. ``limit``: number of jobs in all. ``immediately``: a new cron has its first tick at once.
        ``prevent_overlap``: skip a tick while the previous job is unfinished. ``skip_missed``: skip ticks that were missed
        while no server ran. All other options are for its jobs.

        ``queue``: the queue of its jobs, or a task, whose queue is used. ``data``: the payload of its jobs. For a cron that
        calls a task: ``task.data(…)``; its jobs have the options of the task, unless they are given here.
        """
        if not isinstance(queue, str):
            data = queue.data() if data is None else data
            queue = queue.queue
        chosen = {
            "priority": priority,
            "unique_key": unique_key,
            "max_attempts": max_attempts,
            "backoff": backoff,
            "timeout": timeout,
            **options,
        }
        of_task = data.options if isinstance(data, TaskCall) else {}
        interval = None if every is None else duration_ms(every, "every")
        times = {"schedule": schedule, "repeatEvery": interval, "timezone": timezone, "maxLimit": limit}
        cron = {
            "name": name,
            "queue": new_queue(queue),
            "data": data,
            "immediately": immediately,
            "preventOverlap": prevent_overlap,
            "skipMissedOnRestart": skip_missed,
            "skipIfNoWorker": skip_if_no_worker,
            **without_none(times),
            **cron_fields({**of_task, **without_none(chosen)}),
        }
        return await self._send(ApiCall("POST", "/crons", replies.CRON, encode(cron)))

    async def all(self) -> list[Cron]:
        """Return all crons of the namespace, by name."""
        return await self._send(ApiCall("GET", "/crons", replies.CRONS))

    async def get(self, name: str) -> Cron:
        """Return a cron. Raises NotFound."""
        return await self._send(ApiCall("GET", path("/crons/{}", name), replies.CRON))

    async def delete(self, name: str) -> None:
        """Remove a cron. Its jobs stay. Raises NotFound."""
        await self._send(ApiCall("DELETE", path("/crons/{}", name), nothing, already=(404,)))
