"""Where handlers run: functions in threads, coroutines in a loop, and never in the thread that sends requests to the server."""

from __future__ import annotations

import logging
import queue
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from penstock.client import _execute
from penstock.client._execute import DROPPED
from penstock.client._stack import stack_of_frame

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from penstock.client._execute import Handler, Outcome
    from penstock.client.context import JobContext

    Finished = Callable[[JobContext, Outcome], None]
    from penstock.client.tasks import Tasks


log = logging.getLogger("penstock.client")


class ThreadRunner:
    """Runs functions in up to ``concurrency`` threads. A thread is started when there is a job for it."""

    def __init__(self, handler: Handler, concurrency: int, finished: Finished) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._finished = finished
        self._line: queue.SimpleQueue[JobContext | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._late: set[JobContext] = set()  #: jobs whose timeout is over and whose threads still run

    def submit(self, contexts: Sequence[JobContext]) -> None:
        """Run the handler on these jobs, as soon as a thread is free."""
        for context in contexts:
            self._line.put(context)
        for _ in range(min(len(contexts), self._concurrency - len(self._threads))):
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="penstock-handler", daemon=True)
        self._threads.append(thread)
        thread.start()

    def take_back(self) -> list[JobContext]:
        """Return the jobs that were not started."""
        back: list[JobContext] = []
        while True:
            try:
                context = self._line.get_nowait()
            except queue.Empty:
                return back
            if context is not None:
                back.append(context)

    def cancel(self, _context: JobContext) -> None:
        """Do nothing: a thread cannot be interrupted. The handler checks ``context.cancelled``."""

    def time_out(self, context: JobContext) -> list[str] | None:
        """Abandon the thread, and return its stack. Another thread replaces it, unless too many such threads run."""
        with self._lock:
            # A thread that has ended records that before it checks the timeout, so one of the two notices.
            frame = None if context.thread is None else sys._current_frames().get(context.thread)  # noqa: SLF001
            if frame is None:
                return []
            replaced = sum(each.replaced for each in self._late)
            self._late.add(context)
            if replaced < self._concurrency:
                context.replaced = True
                self._start()
            else:
                log.error("%d threads hang, and no more are started in their place. Restart this worker.", len(self._late))
        return stack_of_frame(frame)

    @property
    def hung(self) -> int:
        """Number of hanging threads that were not replaced."""
        with self._lock:
            return sum(not context.replaced for context in self._late)

    def close(self) -> None:
        """Let the threads end after their current jobs."""
        for _ in self._threads:
            self._line.put(None)

    def _work(self) -> None:
        while (context := self._line.get()) is not None:
            if context.cancelled:
                self._finished(context, DROPPED)
                continue
            context.thread = threading.get_ident()
            context.begun = True
            outcome = _execute.run(self._handler, context)
            context.thread = None
            if context.timed_out:
                with self._lock:
                    self._late.discard(context)
            self._finished(context, outcome)
            if context.replaced:
                return


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
        """Run the handler on these jobs, as soon as others have ended. Called from another thread."""
        self._line.extend(contexts)
        self._loop.call_soon_threadsafe(self._start)

    def take_back(self) -> list[JobContext]:
        """Return the jobs that were not started. Called from another thread."""
        back = []
        while True:
            try:
                back.append(self._line.popleft())
            except IndexError:
                return back

    def cancel(self, context: JobContext) -> None:
        """Cancel the coroutine that runs a job. Called from another thread."""
        self._loop.call_soon_threadsafe(self._cancel, context)

    def close(self) -> None:
        """Do nothing: the coroutines have ended, or are cancelled with the loop."""

    def time_out(self, context: JobContext) -> list[str] | None:
        """Cancel the coroutine. The outcome is reported when it has ended."""
        self.cancel(context)
        return None

    @property
    def hung(self) -> int:
        """Always 0: a coroutine that does not end counts as running."""
        return 0

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
            context.begun = True
            context.task = self._loop.create_task(self._work(context))
            self._running.add(context.task)
            context.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _work(self, context: JobContext) -> None:
        self._finished(context, await _execute.run_async(self._handler, context))


class Runner(Protocol):
    """Runs handlers on jobs, and reports the outcomes to the worker loop."""

    def submit(self, contexts: Sequence[JobContext]) -> None:
        """Run the handler on these jobs, as soon as there is room."""

    def take_back(self) -> list[JobContext]:
        """Return the jobs that were not started."""

    def cancel(self, context: JobContext) -> None:
        """Cancel the handler of a job, if that is possible."""

    def time_out(self, context: JobContext) -> list[str] | None:
        """End an attempt whose timeout is over. None: it will report its outcome. Otherwise: its stack; it cannot be ended."""

    @property
    def hung(self) -> int:
        """Number of hanging threads that were not replaced."""

    def close(self) -> None:
        """Release resources that are not needed any more."""


class TaskRunner:
    """Sends each job to the runner for its task: up to ``concurrency`` threads, and as many coroutines."""

    def __init__(self, tasks: Tasks, concurrency: int, finished: Finished, loop: asyncio.AbstractEventLoop) -> None:
        self._tasks = tasks
        self._threads = ThreadRunner(self._call, concurrency, finished)
        self._loop = LoopRunner(self._acall, concurrency, finished, loop)

    def submit(self, contexts: Sequence[JobContext]) -> None:
        """Run the tasks of these jobs, as soon as there is room."""
        coroutines = [context for context in contexts if self._is_async(context)]
        if coroutines:
            self._loop.submit(coroutines)
        if len(coroutines) < len(contexts):
            self._threads.submit([context for context in contexts if not self._is_async(context)])

    def take_back(self) -> list[JobContext]:
        """Return the jobs that were not started."""
        return self._threads.take_back() + self._loop.take_back()

    def cancel(self, context: JobContext) -> None:
        """Cancel the handler of a job."""
        self._loop.cancel(context)

    def time_out(self, context: JobContext) -> list[str] | None:
        """End an attempt whose timeout is over, or return its stack."""
        return (self._threads if context.task is None else self._loop).time_out(context)

    @property
    def hung(self) -> int:
        """Number of hanging threads that were not replaced."""
        return self._threads.hung

    def close(self) -> None:
        """Let the threads end after their current jobs."""
        self._threads.close()

    def _is_async(self, context: JobContext) -> bool:
        task = self._tasks.find(context.data)
        return task is not None and task.is_async

    def _call(self, context: JobContext) -> Any:
        task, arguments = self._tasks.of(context)
        return task.function(**arguments)

    async def _acall(self, context: JobContext) -> Any:
        task, arguments = self._tasks.of(context)
        return await task.function(**arguments)
