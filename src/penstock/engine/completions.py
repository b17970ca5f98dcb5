"""Waiting for a job to end, without asking again and again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from penstock.core import limits
from penstock.core.errors import JobNotFound, TooMany
from penstock.core.lifecycle import Arrow, State

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
    from penstock.engine.work import JobRef, Work


class Ending(NamedTuple):
    """How a job ended: completed, with what its worker answered, or dead or removed."""

    completed: bool
    result: bytes | None = None


class Completions:
    """Who waits for which job. Told when the end of the job is as durable as an answer promises."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[int, list[asyncio.Future[Ending | None]]] = {}
        self.size = 0

    async def wait(self, namespace: str, ref: JobRef, timeout_ms: int) -> Ending | None:
        """Return how a job ended, at once if it has ended already, or None if it did not within the time given."""
        found = await self._engine.store.job_get(namespace, ref)
        if found is None:
            raise JobNotFound
        job = found[0]
        # Between this reading and lining up nothing suspends, so an end cannot slip through.
        if job.state == State.COMPLETED:
            return Ending(completed=True, result=await self._engine.store.result_get(job.id))
        if job.state == State.DEAD:
            return Ending(completed=False)
        if self.size >= limits.waiters_max:
            raise TooMany("Too many callers wait for jobs to end. Ask for the job's state instead.")
        future: asyncio.Future[Ending | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(job.id, []).append(future)
        self.size += 1
        clock = self._engine.clock
        alarm = clock.call_at(clock.steady_ms() + timeout_ms, lambda: _give_up(future))
        try:
            return await future
        finally:
            alarm.cancel()
            self._forget(job.id, future)

    def answered(self, work: Work) -> None:
        """Tell those who wait what a batch has ended."""
        if not self._waiting:
            return
        for job, arrow in work.ended:
            for future in self._waiting.get(job.id, ()):
                if not future.done():
                    completed = arrow in (Arrow.COMPLETE, Arrow.COMPLETE_REMOVE)
                    future.set_result(Ending(completed, work.results.get(job.id)))

    def send_everybody_home(self) -> None:
        """Let everybody's time run out, because the server is closing."""
        for futures in self._waiting.values():
            for future in futures:
                _give_up(future)

    def _forget(self, job_id: int, future: asyncio.Future[Ending | None]) -> None:
        futures = self._waiting[job_id]
        futures.remove(future)
        self.size -= 1
        if not futures:
            del self._waiting[job_id]


def _give_up(future: asyncio.Future[Ending | None]) -> None:
    if not future.done():
        future.set_result(None)
