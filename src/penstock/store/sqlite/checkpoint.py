"""Moves what is in the write-ahead log into the main file, without holding up the event loop.

SQLite would do this inside a commit, on the event loop, with two fsyncs. Here a second connection does it in a thread, in two
steps: first alongside the writer, which takes care of nearly everything, then the short rest while new transactions wait a
moment (they gather into one batch meanwhile). After the second step the log starts again from its beginning and stays small.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import apsw
import structlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

log = structlog.get_logger("penstock.store")


class Checkpointer:
    """Watches the size of the log. ``connect`` opens a connection of its own, used in its thread only."""

    def __init__(self, connect: Callable[[], apsw.Connection], thread: ThreadPoolExecutor, pages: int) -> None:
        self.finishing = False
        self._connect = connect
        self._thread = thread
        self._pages = pages
        self._next_at = pages
        self._db: apsw.Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self.when_done: Callable[[], None] = lambda: None  #: called before the next commit

    def log_has(self, pages: int) -> None:
        """Hear after each commit how many pages the log holds."""
        if pages < self._pages:
            self._next_at = self._pages
        elif pages >= self._next_at and self._task is None:
            self._next_at = pages + self._pages
            self._task = asyncio.get_running_loop().create_task(self._run(), name="penstock-checkpoint")

    def every(self, pages: int) -> None:
        """Change how many pages the log may hold."""
        self._pages = self._next_at = pages

    async def finished(self) -> None:
        """Wait for the second step."""
        await self._done.wait()

    async def close(self) -> None:
        """Wait for a checkpoint under way and close the connection."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        if self._db is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._db.close)
            self._db = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._step)
            self._done.clear()
            self.finishing = True
            try:
                await loop.run_in_executor(self._thread, self._step)
            finally:
                self.finishing = False
                self.when_done()
                self._done.set()
        except apsw.Error as error:
            # The log just stays longer; the writer notices a broken disk by itself.
            log.warning("checkpoint failed", error=str(error))
        finally:
            self._task = None

    def _step(self) -> None:
        """Copy everything that was in the log when the step began."""
        if self._db is None:
            self._db = self._connect()
        self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
