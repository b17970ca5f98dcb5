"""Cancellation of jobs that run. One request waits for all of them, so a worker is notified at once, at little cost.

The server answers when a job is cancelled or discarded. Heartbeats notice it, too, but later, and each writes a lease.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penstock.client import _clock
from penstock.client.errors import NotFound, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.client._async.client import AsyncClient
    from penstock.client._held_jobs import HeldJobs
    from penstock.client.context import JobContext

log = logging.getLogger("penstock.client")

#: How often a worker checks whether it has jobs that are not watched yet, in seconds. Jobs that end before are never watched.
CHECK_S: Final = 0.5
#: How long one request waits, in seconds.
WAIT_S: Final = 30.0
#: After an error, the next request is sent after so many seconds.
REST_S: Final = 5.0
#: Jobs of one request.
JOBS_MAX: Final = 10_000


class Cancellations:
    """Watches the jobs that a worker has had for a while. ``lose`` is called for each lost job."""

    def __init__(self, client: AsyncClient, hand: HeldJobs, lose: Callable[[JobContext], None]) -> None:
        self._jobs = client.jobs
        self._hand = hand
        self._lose = lose
        self._asked: frozenset[str] = frozenset()  #: tokens of the jobs of the request under way
        self._asking: asyncio.Task[None] | None = None
        self._is_known = True  #: whether the server has this route

    async def run(self) -> None:
        """Watch, until cancelled."""
        try:
            while self._is_known:
                await _clock.pause(CHECK_S)
                await self._ask_server()
        finally:
            await self._hang_up()

    async def _ask_server(self) -> None:
        """Send a request for all jobs that have run for a while, if one of them is not watched."""
        taken_before = _clock.steady() - CHECK_S
        running = [
            context
            for context in self._hand.held.values()
            if context.taken_at <= taken_before and not context.finished and not context.cancelled
        ][:JOBS_MAX]
        is_asking = self._asking is not None and not self._asking.done()
        if not running or (is_asking and all(context.info.token in self._asked for context in running)):
            return
        await self._hang_up()
        self._asked = frozenset(context.info.token for context in running)
        self._asking = asyncio.create_task(self._ask(running))

    async def _ask(self, contexts: Sequence[JobContext]) -> None:
        try:
            batch = await self._jobs.held([context.info for context in contexts], wait=WAIT_S)
        except NotFound:
            log.info("The server is older than this SDK: the worker detects cancelled jobs only at the next heartbeat")
            self._is_known = False
        except PenstockError as error:
            log.debug("The server did not say which jobs are held: %s", error)
            await _clock.pause(REST_S)
        else:
            lost = {error.id for error in batch.errors}
            for context in contexts:
                if context.id in lost:
                    self._lose(context)

    async def _hang_up(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
            self._asking = None
