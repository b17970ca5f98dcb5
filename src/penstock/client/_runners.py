"""Where handlers run: functions in threads, coroutines in a loop. Neither is the thread that talks to the server."""

from __future__ import annotations

import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol

from penstock.client import _handling
from penstock.client._handling import DROPPED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.client._handling import Handler, Outcome
    from penstock.client.context import JobContext

    Finished = Callable[[JobContext, Outcome], None]


class ThreadRunner:
    """Runs functions in up to ``concurrency`` threads, which are started when there is something to do."""

    def __init__(self, handler: Handler, concurrency: int, finished: Finished) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._finished = finished
        self._line: queue.SimpleQueue[JobContext | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, contexts: Sequence[JobContext]) -> None:
        """Run the handler on these, as soon as a thread is free."""
        for context in contexts:
            self._line.put(context)
        for _ in range(min(len(contexts), self._concurrency - len(self._threads))):
            thread = threading.Thread(target=self._work, name="penstock-handler", daemon=True)
            self._threads.append(thread)
            thread.start()

    def take_back(self) -> list[JobContext]:
        """Return those that were not begun."""
        back: list[JobContext] = []
        while True:
            try:
                context = self._line.get_nowait()
            except queue.Empty:
                return back
            if context is not None:
                back.append(context)

    def cancel(self, _context: JobContext) -> None:
        """A thread cannot be interrupted: the handler finds out by ``context.cancelled``."""

    def close(self) -> None:
        """Let the threads end when they are done."""
        for _ in self._threads:
            self._line.put(None)

    def _work(self) -> None:
        while (context := self._line.get()) is not None:
            outcome = DROPPED if context.cancelled else _handling.run(self._handler, context)
            self._finished(context, outcome)


class LoopRunner:
    """Runs coroutines in a loop, up to ``concurrency`` at a time."""

    def __init__(self, handler: Handler, concurrency: int, finished: Finished, loop: asyncio.AbstractEventLoop) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._finished = finished
        self._loop = loop
        self._line: deque[JobContext] = deque()
        self._running: set[asyncio.Task[None]] = set()

    def submit(self, contexts: Sequence[JobContext]) -> None:
        """Run the handler on these, as soon as others have ended. Called from another thread."""
        self._line.extend(contexts)
        self._loop.call_soon_threadsafe(self._start)

    def take_back(self) -> list[JobContext]:
        """Return those that were not begun. Called from another thread."""
        back = []
        while True:
            try:
                back.append(self._line.popleft())
            except IndexError:
                return back

    def cancel(self, context: JobContext) -> None:
        """Cancel the coroutine that works on a job. Called from another thread."""
        self._loop.call_soon_threadsafe(self._cancel, context)

    def close(self) -> None:
        """Nothing is left to do: coroutines have ended, or are cancelled with the loop."""

    @staticmethod
    def _cancel(context: JobContext) -> None:
        if context.task is not None:
            context.task.cancel()

    def _start(self) -> None:
        while self._line and len(self._running) < self._concurrency:
            try:
                context = self._line.popleft()
            except IndexError:  # taken back meanwhile
                return
            if context.cancelled:
                self._finished(context, DROPPED)
                continue
            context.task = self._loop.create_task(self._work(context))
            self._running.add(context.task)
            context.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _work(self, context: JobContext) -> None:
        self._finished(context, await _handling.run_async(self._handler, context))


class Runner(Protocol):
    """Runs handlers on jobs, and says to the desk what became of them."""

    def submit(self, contexts: Sequence[JobContext]) -> None:
        """Run the handler on these, as soon as there is room."""

    def take_back(self) -> list[JobContext]:
        """Return those that were not begun."""

    def cancel(self, context: JobContext) -> None:
        """Tell who works on a job to stop, if that is possible."""

    def close(self) -> None:
        """Let go of what is not needed any more."""
