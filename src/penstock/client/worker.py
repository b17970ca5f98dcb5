"""``Worker``: claims jobs of some queues, runs a handler on each, and settles them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from typing import TYPE_CHECKING

from penstock.client._durations import Duration, duration_s
from penstock.client._execute import is_async
from penstock.client._executors import LoopRunner, Runner, TaskRunner, ThreadRunner
from penstock.client._settings import Settings
from penstock.client._worker_loop import WorkerLoop
from penstock.client._worker_options import WorkerOptions
from penstock.client.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

    from penstock.client._async.client import AsyncClient
    from penstock.client._execute import Handler
    from penstock.client._sync.client import Client


class Worker:
    """Works on the jobs of some queues until it is stopped.

    ``client``: a client, or the address of a server. ``queues``: the name of a queue, or several. ``handler``: a function or
    coroutine function that takes a ``JobContext``; its return value is the job's result, an exception makes the attempt fail
    (``Retry`` and ``Fail`` choose how). Functions run in threads, coroutines in the loop of ``serve``. Instead of all three,
    a ``Tasks`` group can be given: ``Worker(tasks)``.

    ``concurrency``: jobs at a time; 10. ``prefetch``: jobs that may be claimed ahead, though never more than are finished in
    0.1 s; 1,000. ``lease``: how long a lease lasts without a heartbeat; 30 s. ``heartbeat``: how often heartbeats are sent,
    whatever the handlers do; a third of the lease. ``wait``: how long one request waits for jobs; 20 s. ``stop_timeout``:
    how long running jobs may take to end after ``stop``; 30 s. ``unknown_task_timeout``: for how long a job whose task no
    worker has is deferred, before it is dead; a day. ``name``: for people to read; the machine's.
    """

    def __init__(
        self,
        client: Client | AsyncClient | Tasks | str,
        queues: str | Iterable[str] | None = None,
        handler: Handler | Tasks | None = None,
        *,
        concurrency: int = 10,
        prefetch: int = 1000,
        lease: Duration = 30.0,
        heartbeat: Duration | None = None,
        wait: Duration = 20.0,
        stop_timeout: Duration = 30.0,
        unknown_task_timeout: Duration = 86_400.0,
        name: str | None = None,
    ) -> None:
        settings = Settings(url=client) if isinstance(client, str) else client.settings
        if handler is None and isinstance(client, Tasks):
            handler = client
        if handler is None:
            raise TypeError("A worker needs a handler: a function, a coroutine function, or Tasks")
        if queues is None:
            queues = handler.queues if isinstance(handler, Tasks) else ()
        names = (queues,) if isinstance(queues, str) else tuple(dict.fromkeys(queues))
        if not names:
            raise ValueError("A worker needs at least one queue")
        if concurrency < 1 or prefetch < 0:
            raise ValueError("concurrency must be 1 or more, prefetch 0 or more")
        lease_s = duration_s(lease, "lease")
        self.plan = WorkerOptions(
            queues=names,
            concurrency=concurrency,
            prefetch=prefetch,
            lease=lease_s,
            heartbeat=lease_s / 3 if heartbeat is None else duration_s(heartbeat, "heartbeat"),
            wait=duration_s(wait, "wait"),
            stop_timeout=duration_s(stop_timeout, "stop_timeout"),
            unknown_task_timeout=duration_s(unknown_task_timeout, "unknown_task_timeout"),
            name=name or socket.gethostname(),
        )
        self._handler = handler
        self._worker_loop = WorkerLoop(settings, self.plan, tuple(handler.tasks) if isinstance(handler, Tasks) else ())
        self._lock = threading.Lock()
        self._started = False
        self._stopped = 0

    @property
    def processed(self) -> int:
        """Number of completed jobs."""
        return self._worker_loop.processed

    @property
    def failed(self) -> int:
        """Number of failed attempts."""
        return self._worker_loop.failed

    def run(self) -> None:
        """Work in this thread until stopped: by ``stop``, or in the main thread by SIGTERM or Ctrl-C.

        The first signal finishes running jobs; the second releases them at once. Raises ApiError if a refusal is final.
        """
        with self._signals():
            asyncio.run(self.serve())

    async def serve(self) -> None:
        """Work in the running loop, without signal handlers. Cancelling it stops the worker, and waits for running jobs."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        thread = threading.Thread(target=self._run_loop, args=(ended,), name="penstock-worker-loop", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        except asyncio.CancelledError:
            self.stop()
            await ended
            raise
        finally:
            if ended.done():
                thread.join()
        if self._worker_loop.error is not None:
            raise self._worker_loop.error

    def stop(self) -> None:
        """Claim no more jobs and finish those that run; when called twice, release them at once. From any thread."""
        with self._lock:
            self._stopped += 1
            if self._started:
                self._worker_loop.stop()

    def _run_loop(self, ended: asyncio.Future[None]) -> None:
        """Run the worker loop, in a thread and an event loop of its own."""
        handlers = ended.get_loop()
        try:
            asyncio.run(self._serve_jobs(handlers))
        except Exception as error:  # noqa: BLE001, serve raises it
            self._worker_loop.error = self._worker_loop.error or error
        with contextlib.suppress(RuntimeError):  # that loop may be closed already
            handlers.call_soon_threadsafe(_resolve, ended)

    async def _serve_jobs(self, handlers: asyncio.AbstractEventLoop) -> None:
        worker_loop, concurrency = self._worker_loop, self.plan.concurrency
        with self._lock:
            if self._started:
                raise RuntimeError("A worker runs once. Make another one.")
            worker_loop.start_in(asyncio.get_running_loop())
            self._started = True
            for _ in range(self._stopped):
                worker_loop.stop()
        runner: Runner
        if isinstance(self._handler, Tasks):
            runner = TaskRunner(self._handler, concurrency, worker_loop.outbox.finished, handlers)
        elif is_async(self._handler):
            runner = LoopRunner(self._handler, concurrency, worker_loop.outbox.finished, handlers)
        else:
            runner = ThreadRunner(self._handler, concurrency, worker_loop.outbox.finished)
        try:
            await worker_loop.run(runner)
        finally:
            runner.close()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Stop on signals, if this is the main thread. Python handles signals between two steps of the main thread's code."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(_number: int, _frame: FrameType | None) -> None:
            # Not here: a signal handler must not wait for a lock that the interrupted code may hold.
            threading.Thread(target=self.stop, daemon=True).start()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _resolve(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
