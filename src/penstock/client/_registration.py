"""Registration of a worker, for people and for crons that need a worker. Its failure does not affect the worker."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from penstock.client import _clock
from penstock.client.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client._async.client import AsyncClient
    from penstock.client._worker_options import WorkerOptions

log = logging.getLogger("penstock.client")
#: How long unregistering may take, in seconds.
GOODBYE_S = 2.0


class Registration:
    """The entry of one worker among the registered ones."""

    def __init__(self, client: AsyncClient, plan: WorkerOptions) -> None:
        self._workers = client.workers
        self._plan = plan
        self._id = f"{plan.name}-{_clock.fresh_name()}"
        self._known = False

    async def show(self, active: int, processed: int, failed: int) -> None:
        """Report that the worker is alive, and its counts; register again if it is not registered."""
        try:
            if self._known:
                self._known = await self._workers.heartbeat(self._id, active_jobs=active, processed=processed, failed=failed)
            if not self._known:
                await self._register()
                self._known = True
        except PenstockError as error:
            log.debug("The worker could not introduce itself: %s", error)

    async def _register(self) -> None:
        await self._workers.register(
            self._plan.name,
            self._plan.queues,
            concurrency=self._plan.concurrency,
            worker_id=self._id,
            hostname=socket.gethostname(),
            pid=os.getpid(),
        )

    async def say_goodbye(self) -> None:
        """Unregister the worker."""
        try:
            await _clock.within(GOODBYE_S, self._workers.unregister(self._id))
        except (PenstockError, TimeoutError) as error:
            log.debug("The worker could not say goodbye: %s", error)
