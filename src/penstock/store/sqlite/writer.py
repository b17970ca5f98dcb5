"""Who may use the writer's connection: the transaction in progress, and everything else between two transactions.

A long transaction pauses, so that the event loop serves other requests meanwhile. What uses the same connection, or depends
on what is committed, waits for its end: it must neither see changes that may be rolled back, nor be part of them.
"""

from __future__ import annotations

import asyncio


class Writer:
    """Records which task has a transaction in progress that has paused. There is one at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None
        self._ended = asyncio.Event()

    def begin(self) -> None:
        """Record that the transaction of the current task pauses for the first time."""
        self._task = asyncio.current_task()
        self._ended.clear()

    def end(self) -> None:
        """Record that the transaction has ended."""
        self._task = None
        self._ended.set()

    async def idle(self) -> None:
        """Wait until no transaction is in progress. The transaction's own task does not wait.

        The caller uses the connection before it awaits anything else.
        """
        while self._task is not None and self._task is not asyncio.current_task():
            await self._ended.wait()
