"""Crons: jobs that are pushed at each tick of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client import _replies as replies
from penstock.client._call import Call, nothing, path
from penstock.client._names import new_queue
from penstock.client._plain import encode
from penstock.client._units import Duration, duration_ms
from penstock.client.options import Backoff, backoff_field

if TYPE_CHECKING:
    from penstock.client._async.transport import AsyncTransport
    from penstock.client.models import Cron


class AsyncCrons:
    """Crons of a namespace, by name. Made by the client: ``client.crons``."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._send = transport.send

    async def add(
        self,
        name: str,
        queue: str,
        data: Any = None,
        *,
        schedule: str | None = None,
        every: Duration | None = None,
        timezone: str | None = None,
        priority: int = 0,
        limit: int | None = None,
        unique_key: str | None = None,
        immediately: bool = False,
        prevent_overlap: bool = True,
        skip_missed: bool = True,
        skip_if_no_worker: bool = False,
        max_attempts: int | None = None,
        backoff: Duration | Backoff | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109, of its jobs
    ) -> Cron:
        """Add a cron, or change the one of that name; doing it at each start of a program is fine.

        ``schedule``: five or six fields, or ``@daily`` and its kin; or ``every``, an interval. ``timezone``: an IANA name, UTC.
        ``limit``: jobs in all. ``immediately``: a new cron has its first tick at once. ``prevent_overlap``: skip a tick while
        the job before lives. ``skip_missed``: leave out ticks nobody was there for. The last three are for its jobs.
        """
        options = {
            "maxAttempts": max_attempts,
            "backoff": None if backoff is None else backoff_field(backoff),
            "timeout": None if timeout is None else duration_ms(timeout, "timeout"),
        }
        given = {key: value for key, value in options.items() if value is not None}
        fields = {
            "schedule": schedule,
            "repeatEvery": None if every is None else duration_ms(every, "every"),
            "timezone": timezone,
            "maxLimit": limit,
            "uniqueKey": unique_key,
            "jobOptions": given or None,
        }
        cron = {
            "name": name,
            "queue": new_queue(queue),
            "data": data,
            "priority": priority,
            "immediately": immediately,
            "preventOverlap": prevent_overlap,
            "skipMissedOnRestart": skip_missed,
            "skipIfNoWorker": skip_if_no_worker,
            **{key: value for key, value in fields.items() if value is not None},
        }
        return await self._send(Call("POST", "/crons", replies.CRON, encode(cron)))

    async def all(self) -> list[Cron]:
        """Return all crons of the namespace, by name."""
        return await self._send(Call("GET", "/crons", replies.CRONS))

    async def get(self, name: str) -> Cron:
        """Return a cron. Raises NotFound."""
        return await self._send(Call("GET", path("/crons/{}", name), replies.CRON))

    async def delete(self, name: str) -> None:
        """Remove a cron; its jobs stay. Raises NotFound."""
        await self._send(Call("DELETE", path("/crons/{}", name), nothing, already=(404,)))
