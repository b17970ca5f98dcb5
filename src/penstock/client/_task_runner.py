"""Runs tasks: functions in threads, coroutines in a loop, both for one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client._executors import LoopRunner, ThreadRunner

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from penstock.client._executors import Finished
    from penstock.client.context import JobContext
    from penstock.client.tasks import Tasks


class TaskRunner:
    """Sends each job to where its task runs: up to ``concurrency`` threads, and as many coroutines."""

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
        """Return those that were not begun."""
        return self._threads.take_back() + self._loop.take_back()

    def cancel(self, context: JobContext) -> None:
        """Tell who works on a job to stop."""
        self._loop.cancel(context)

    def time_out(self, context: JobContext) -> list[str] | None:
        """End an attempt whose time is over, or say where it is."""
        return (self._threads if context.task is None else self._loop).time_out(context)

    @property
    def hung(self) -> int:
        """How many threads hang that no others have taken the place of."""
        return self._threads.hung

    def close(self) -> None:
        """Let the threads end when they are done."""
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
