"""Periodic services: retention, recovery, and other background work.

Each service has the same life cycle: ``start``, ``stop``, and ``run_once``, which does a bounded piece of work. A test can
call it without any time passing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from penstock.core.errors import ServerError
from penstock.core.lifecycle import Arrow, State
from penstock.engine.queues.admin import move_many

if TYPE_CHECKING:
    from penstock.core.clock import Alarm
    from penstock.core.queue import Queue
    from penstock.engine.context import EngineContext


log = structlog.get_logger("penstock.keeper")


class PeriodicService:
    """Base of the services. ``every_ms`` is the pause between two rounds."""

    every_ms = 5_000

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = True
        self._stopping = False
        self._woken = False  #: ``wake`` was called; for services that check it before they end a round

    def start(self) -> None:
        """Start the service; starting twice is allowed."""
        if self._stopped:
            self._stopped = self._stopping = False
            self._set_alarm()

    async def stop(self) -> None:
        """Stop after the current slice; stopping twice, or before the start, is allowed."""
        self._stopped = self._stopping = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """Run a round now, or once more after the current one."""
        self._woken = True
        if not self._stopped and self._task is None:
            if self._alarm is not None:
                self._alarm.cancel()
            self._on_alarm()

    async def run_once(self) -> None:
        """Do one round."""
        raise NotImplementedError

    def goes_on(self) -> bool:
        """Return whether the current round may continue; a stop does not wait for all of it."""
        return not self._stopping

    async def forget(self, queue: Queue, state: State, *, limit: int | None = None, before_ms: int | None = None) -> None:
        """Remove finished jobs of a queue, oldest first."""
        await move_many(
            self._engine,
            queue.key,
            Arrow.FORGET,
            states=(state,),
            limit=limit,
            before_ms=before_ms,
            goes_on=self.goes_on,
        )

    def _set_alarm(self) -> None:
        clock = self._engine.clock
        self._alarm = clock.call_at(clock.steady_ms() + self.every_ms, self._on_alarm)

    def _on_alarm(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._round(), name=f"penstock-{type(self).__name__}")

    async def _round(self) -> None:
        try:
            await self.run_once()
        except ServerError as error:
            log.warning(
                "housekeeping was interrupted and continues in the next round", keeper=type(self).__name__, error=str(error)
            )
        except Exception:
            log.exception("housekeeping failed", keeper=type(self).__name__)
        self._task = None
        if not self._stopped:
            self._set_alarm()
