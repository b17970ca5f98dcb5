"""Tests of programs that use tasks: without a server (``inline``, ``manual``), or with a real one (``Server``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING, Any, Final, Self, cast

import msgspec

from penstock.client import _clock
from penstock.client._settings import Settings
from penstock.client._sync.client import Client
from penstock.client._units import duration_ms, moment_ms
from penstock.client.context import JobContext, set_current
from penstock.client.errors import NotFound
from penstock.client.models import Job, Waited
from penstock.client.options import job_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from penstock.client._async.client import AsyncClient
    from penstock.client._units import Duration
    from penstock.client.options import NewJob
    from penstock.client.tasks import Task, Tasks

START_S = 60
#: What a server reads from its environment; a test holds this to its settings. A server for tests sees nothing of it: it would
#: write into the store that the developer's shell names.
SERVER_PREFIXES: Final = ("PENSTOCK_", "EPOCHQ_", "EPOCHQUEUE_")
SERVER_VARIABLES: Final = frozenset(
    (
        "AUTH_TOKENS", "CORS_ALLOW_ORIGIN", "DATA_PATH", "HOST", "HTTP_PORT", "JWT_AUDIENCE", "JWT_ISSUER", "JWT_JWKS",
        "JWT_KEY_FILE", "JWT_LEEWAY_MS", "JWT_REQUIRED_CLAIMS", "JWT_SECRET", "LOG_FORMAT", "LOG_LEVEL", "MEMORY_WARNING_MB",
        "METRICS_AUTH", "NAMESPACE_QUOTAS", "QUEUE_IDLE_THRESHOLD_MS", "QUEUE_SIZE_THRESHOLD", "RATE_LIMIT_CLEANUP_MS",
        "RATE_LIMIT_MAX_REQUESTS", "RATE_LIMIT_WINDOW_MS", "SHUTDOWN_TIMEOUT_MS", "STORAGE_WARNING_MB", "TCP_PORT",
        "TLS_CERT_FILE", "TLS_KEY_FILE", "WEBHOOK_ALLOWED_HOSTS", "WORKER_OVERLOAD_THRESHOLD_MS", "WORKER_TIMEOUT_MS",
    )
)  # fmt: skip


class Enqueued(msgspec.Struct, kw_only=True):
    """A call that was enqueued. ``run_at`` is milliseconds since 1970; None: at once."""

    id: str
    task: str
    args: dict[str, Any]
    queue: str
    run_at: int | None
    options: dict[str, Any]
    state: str = "waiting"
    result: Any = None
    error: str | None = None


class Box:
    """Keeps what was enqueued, in order, and runs it when it is told to. Made by ``inline`` and ``manual``."""

    def __init__(self, tasks: Tasks, *, inline: bool) -> None:
        self.enqueued: list[Enqueued] = []
        self._tasks = tasks
        self._inline = inline
        self.settings = Settings(url="http://in-a-test")
        self._shown = _Shown(self)

    # What tests ask.

    def calls(self, task: Task[Any, Any, Any], **arguments: Any) -> list[Enqueued]:
        """Return the calls of a task that have these arguments, among others."""
        wanted = msgspec.to_builtins(arguments)
        return [
            each
            for each in self.enqueued
            if each.task == task.name
            and all(name in each.args and each.args[name] == value for name, value in wanted.items())
        ]

    def assert_enqueued(self, task: Task[Any, Any, Any], **arguments: Any) -> Enqueued:
        """Return the first call of a task that has these arguments, among others. Raises AssertionError without one."""
        found = self.calls(task, **arguments)
        if not found:
            others = "".join(f"\n  {each.task}({_shown(each.args)})" for each in self.enqueued)
            raise AssertionError(f"{task.name}({_shown(arguments)}) was not enqueued. What was:{others or ' nothing'}")
        return found[0]

    def assert_not_enqueued(self, task: Task[Any, Any, Any], **arguments: Any) -> None:
        """Raise AssertionError if there is a call of a task that has these arguments, among others."""
        found = self.calls(task, **arguments)
        if found:
            raise AssertionError(f"{task.name}({_shown(found[0].args)}) was enqueued")

    def drain(self, *, scheduled: bool = False) -> int:
        """Run what waits, and what that enqueues, and so on; return how many ran. What a task raises is raised here.

        ``scheduled``: those that are due later, too.
        """
        count = 0
        while waiting := [each for each in self.enqueued if each.state == "waiting" and (scheduled or each.run_at is None)]:
            for each in waiting:
                self._run(each)
                count += 1
        return count

    # What tasks do.

    @property
    def client(self) -> Client:
        """What handles ask about their jobs."""
        return cast("Client", self._shown)

    @property
    def async_client(self) -> AsyncClient:
        """The same for coroutines."""
        return cast("AsyncClient", _AsyncShown(self._shown))

    def push(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """Keep jobs, and run them if that is what is agreed."""
        kept = [self._keep(queue, job) for job in jobs]
        for each in kept:
            if self._inline and each.state == "waiting":
                self._run(each)
        return [each.id for each in kept]

    async def apush(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """The same for coroutines."""
        kept = [self._keep(queue, job) for job in jobs]
        for each in kept:
            if self._inline and each.state == "waiting":
                await asyncio.to_thread(self._run, each)
        return [each.id for each in kept]

    def _keep(self, queue: str, job: NewJob) -> Enqueued:
        options = dict(job.options)
        job_fields(None, options, named=False)  # what a server would refuse is refused here
        job_id = options.get("job_id")
        for each in self.enqueued if job_id is not None else ():
            if each.id == job_id:
                return each
        key = options.get("unique_key")
        for each in self.enqueued if key is not None else ():
            if each.state == "waiting" and each.queue == queue and each.options.get("unique_key") == key:
                return each
        run_at = None
        if options.get("run_at") is not None:
            run_at = moment_ms(cast("int", options["run_at"]), "run_at")
        elif options.get("delay"):
            run_at = _clock.now_ms() + duration_ms(cast("float", options["delay"]), "delay")
        task, args = job.data["task"], job.data["args"]
        named = _clock.fresh_name() if job_id is None else cast("str", job_id)
        kept = Enqueued(id=named, task=task, args=args, queue=queue, run_at=run_at, options=options)
        self.enqueued.append(kept)
        return kept

    def _run(self, each: Enqueued) -> None:
        """Run a task in a thread of its own, as a worker would, and wait for it."""
        each.state = "active"
        troubles: list[BaseException] = []

        def work() -> None:
            context = JobContext(Job(id=each.id, queue=each.queue, data={"task": each.task, "args": each.args}), _ignore)
            set_current(context)
            try:
                task, arguments = self._tasks.of(context)
                result = task.function(**arguments)
                each.result = msgspec.to_builtins(asyncio.run(_awaited(result)) if task.is_async else result)
                each.state = "completed"
            except BaseException as error:  # noqa: BLE001, the test gets to see it
                each.state, each.error = "failed", str(error)
                troubles.append(error)

        thread = threading.Thread(target=work, name="penstock-test-task")
        thread.start()
        thread.join()
        for error in troubles:
            raise error


@contextlib.contextmanager
def inline(tasks: Tasks) -> Iterator[Box]:
    """Run tasks where they are enqueued, at once, even those that are due later. What they raise is raised there."""
    with _instead(tasks, Box(tasks, inline=True)) as box:
        yield box


@contextlib.contextmanager
def manual(tasks: Tasks) -> Iterator[Box]:
    """Keep what is enqueued until ``box.drain()``."""
    with _instead(tasks, Box(tasks, inline=False)) as box:
        yield box


@contextlib.contextmanager
def _instead(tasks: Tasks, box: Box) -> Iterator[Box]:
    before, tasks.backend = tasks.backend, box
    try:
        yield box
    finally:
        tasks.backend = before


class _Shown:
    """As much of a client as handles use."""

    def __init__(self, box: Box) -> None:
        self._box = box

    @property
    def jobs(self) -> _Shown:
        return self

    def state(self, job_id: str) -> str:
        return next((each.state for each in self._box.enqueued if each.id == job_id), "unknown")

    def get(self, job_id: str) -> Job:
        for each in self._box.enqueued:
            if each.id == job_id:
                data = {"task": each.task, "args": each.args}
                return Job(id=job_id, queue=each.queue, data=data, state=each.state, error=each.error)
        raise NotFound(404, "job_not_found", "Job not found")

    def wait(self, job_id: str, timeout: Duration = 30.0) -> Waited:
        del timeout  # nothing comes by waiting
        self.get(job_id)
        each = next(each for each in self._box.enqueued if each.id == job_id)
        if each.state == "waiting":
            raise AssertionError(f"{each.task} has not run: call drain() before asking for its result")
        return Waited(completed=each.state == "completed", result=each.result)

    def cancel(self, job_id: str) -> None:
        self.get(job_id)
        self._box.enqueued[:] = [each for each in self._box.enqueued if each.id != job_id]


class _AsyncShown:
    """The same, awaited."""

    def __init__(self, shown: _Shown) -> None:
        self._shown = shown

    @property
    def jobs(self) -> _AsyncShown:
        return self

    async def get(self, job_id: str) -> Job:
        return self._shown.get(job_id)

    async def wait(self, job_id: str, timeout: Duration = 30.0) -> Waited:  # noqa: ASYNC109
        return self._shown.wait(job_id, timeout)


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


def _ignore(_context: JobContext) -> None:
    """Reports of tasks in tests go nowhere."""


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


class Server:
    """A real server on a temporary directory, in a process of its own. Use it as a context manager.

    ``options``: more of ``penstock serve``, for example ``"--durability", "never"``. ``env``: settings as environment
    variables. Those of this process do not count.
    """

    def __init__(self, *options: str, env: Mapping[str, str] | None = None) -> None:
        self.url = ""
        self._env = _without_settings(os.environ) | dict(env or {})
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        command = [sys.executable, "-m", "penstock", "serve", "--data", f"{self._directory.name}/data", "--http", address]
        command += ["--tcp", "off", "--resp", "off", "--metrics", "off", *self._options]
        self._process = subprocess.Popen(command, env=self._env, stdout=subprocess.PIPE, text=True)  # noqa: S603, ours
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self.__exit__(None, None, None)
            raise RuntimeError("The server did not start; what it said is above")
        self.url = f"http://{address}"
        return self

    def client(self, **more: Any) -> Client:
        """Return a client of it; arguments as for ``Client``."""
        return Client(self.url, **more)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(START_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
        if self._directory is not None:
            self._directory.cleanup()


def _without_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a server reads from it."""
    return {
        name: value for name, value in env.items() if name not in SERVER_VARIABLES and not name.startswith(SERVER_PREFIXES)
    }
