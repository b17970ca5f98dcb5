"""Moves the write-ahead log into the main file, without blocking the event loop.

SQLite would do this inside a commit, on the event loop, with two fsyncs. Here a second connection does it in a thread, in
two steps: the first step runs beside the writer and copies nearly all pages. The second step copies the short rest while new
transactions wait briefly (they gather into one batch meanwhile). After the second step the log starts again from its
beginning and stays small.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import apsw
import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from concurrent.futures import ThreadPoolExecutor

log = structlog.get_logger("penstock.store")


class Checkpointer:
    """Checks the size of the log. ``connect`` opens a separate connection, used only in its thread.

    ``idle``: returns when no transaction is in progress. The second step begins then.
    """

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        thread: ThreadPoolExecutor,
        pages: int,
        idle: Callable[[], Awaitable[None]],
    ) -> None:
        self.finishing = False
        self._connect = connect
        self._idle = idle
        self._thread = thread
        self._pages = pages
        self._next_at = pages
        self._db: apsw.Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self.when_done: Callable[[], None] = lambda: None  #: called before the next commit

    def log_has(self, pages: int) -> None:
        """Record the number of pages in the log after each commit."""
        if pages < self._pages:
            self._next_at = self._pages
        elif pages >= self._next_at and self._task is None:
            self._next_at = pages + self._pages
            self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-checkpoint")

    def every(self, pages: int) -> None:
        """Change the number of pages that the log may have."""
        self._pages = self._next_at = pages

    async def finished(self) -> None:
        """Wait for the second step."""
        await self._done.wait()

    async def close(self) -> None:
        """Wait for a checkpoint in progress and close the connection."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._db is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
            self._db = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._step)
            await self._idle()
            self._done.clear()
            self.finishing = True
            try:
                await loop.run_in_executor(self._thread, self._step)
            finally:
                self.finishing = False
                self.when_done()
                self._done.set()
        except apsw.Error as error:
            # The log only stays longer; the writer detects a failing disk without this.
            log.warning("checkpoint failed", error=str(error))
        finally:
            self._task = None

    def _step(self) -> None:
        """Copy all pages that were in the log when the step began."""
        if self._db is None:
            self._db = self._connect()
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
