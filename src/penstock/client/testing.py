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
from penstock.client._durations import duration_ms, moment_ms
from penstock.client._execute import Deferred, Done, Dropped, Failed, run, timed_out
from penstock.client._settings import Settings
from penstock.client._sync.client import Client
from penstock.client.context import JobContext
from penstock.client.errors import ApiError, NotFound
from penstock.client.models import Job, Waited
from penstock.client.options import ids_of, job_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from penstock.client._durations import Duration
    from penstock.client._execute import Outcome
    from penstock.client.options import NewJob
    from penstock.client.tasks import Task, Tasks

START_S = 60
#: Prefixes of the server's environment variables; a test compares them with the settings. A server for tests gets none of
#: these variables: it would write into the store that the developer's shell names.
SERVER_PREFIXES: Final = ("PENSTOCK_", "EPOCHQ_", "EPOCHQUEUE_")
SERVER_VARIABLES: Final = frozenset(
    (
        "AUTH_TOKENS", "BQ_DATA_PATH", "BUNQUEUE_DATA_PATH", "CORS_ALLOW_ORIGIN", "DATABASE_URLS", "DATABASE_URLS_FILE",
        "DATA_PATH", "HOST", "HTTP_PORT", "HTTP_SOCKET_PATH", "JWT_AUDIENCE", "JWT_DEFAULT_SCOPES", "JWT_ISSUER", "JWT_JWKS",
        "JWT_KEY_FILE", "JWT_LEEWAY_MS", "JWT_REQUIRED_CLAIMS", "JWT_SECRET", "JWT_SECRET_FILE", "LOG_FORMAT", "LOG_LEVEL",
        "MEMORY_WARNING_MB",
        "METRICS_AUTH", "NAMESPACE_QUOTAS", "QUEUE_IDLE_THRESHOLD_MS", "QUEUE_SIZE_THRESHOLD", "RATE_LIMIT_CLEANUP_MS",
        "RATE_LIMIT_MAX_REQUESTS", "RATE_LIMIT_WINDOW_MS", "REDIS_ADDRS", "S3_BACKUP_ENABLED", "SHUTDOWN_TIMEOUT_MS",
        "STORAGE_WARNING_MB", "TCP_PORT", "TCP_SOCKET_PATH", "TLS_CERT_FILE", "TLS_CLIENT_CA_FILE", "TLS_KEY_FILE", "WAL_DIR",
        "WEBHOOK_ALLOWED_HOSTS", "WORKER_OVERLOAD_THRESHOLD_MS", "WORKER_TIMEOUT_MS",
    )
)  # fmt: skip


class Enqueued(msgspec.Struct, kw_only=True):
    """A call that was enqueued. ``run_at`` is milliseconds since 1970; None: at once.

    ``attempts`` counts failed ones, as a job's does. ``exception``: the error of the last attempt. ``logs``: lines with
    levels.
    """

    id: str
    task: str
    args: dict[str, Any]
    queue: str
    run_at: int | None
    options: dict[str, Any]
    state: str = "waiting"
    result: Any = None
    error: str | None = None
    attempts: int = 0
    exception: BaseException | None = None
    stack: list[str] = []
    progress: int = 0
    progress_message: str | None = None
    logs: list[tuple[str, str]] = []


class TaskBox:
    """Keeps enqueued calls, in order, and runs them on request. Created by ``inline`` and ``manual``.

    A task runs as in a worker: an exception is the failure of that attempt, and the call is retried, without a wait, until
    no attempt is left. Then its handle raises JobFailed.
    """

    def __init__(self, tasks: Tasks, *, inline: bool) -> None:
        self.enqueued: list[Enqueued] = []
        self._tasks = tasks
        self._inline = inline
        self.settings = Settings(url="http://in-a-test")
        self._shown = _Shown(self)

    # Used by tests.

    def calls(self, task: Task[Any, Any, Any], **arguments: Any) -> list[Enqueued]:
        """Return the calls of a task that have these arguments; they may have others, too."""
        wanted = msgspec.to_builtins(arguments)
        return [
            each
            for each in self.enqueued
            if each.task == task.name
            and all(name in each.args and each.args[name] == value for name, value in wanted.items())
        ]

    def assert_enqueued(self, task: Task[Any, Any, Any], **arguments: Any) -> Enqueued:
        """Return the first call of a task that has these arguments. Raises AssertionError if there is none."""
        found = self.calls(task, **arguments)
        if not found:
            others = "".join(f"\n  {each.task}({_shown(each.args)})" for each in self.enqueued)
            raise AssertionError(f"{task.name}({_shown(arguments)}) was not enqueued. What was:{others or ' nothing'}")
        return found[0]

    def assert_not_enqueued(self, task: Task[Any, Any, Any], **arguments: Any) -> None:
        """Raise AssertionError if there is a call of a task that has these arguments."""
        found = self.calls(task, **arguments)
        if found:
            raise AssertionError(f"{task.name}({_shown(found[0].args)}) was enqueued")

    def drain(self, *, scheduled: bool = False) -> int:
        """Run the waiting calls, the calls that these enqueue, and so on; return how many calls ran. Retries do not count.

        ``scheduled``: run those that are due later, too. Exceptions of tasks are not raised here: see
        ``assert_none_failed``.
        """
        count = 0
        while waiting := [each for each in self.enqueued if self._is_ready(each) and (scheduled or each.run_at is None)]:
            for each in waiting:
                self._run(each)
                count += 1
        return count

    def assert_none_failed(self) -> None:
        """Raise AssertionError if a call has failed its last attempt; its cause is the task's exception."""
        for each in self.enqueued:
            if each.state == "failed":
                raise AssertionError(f"{each.task}({_shown(each.args)}) failed: {each.error}") from each.exception

    # Used by tasks.

    @property
    def client(self) -> _Shown:
        """The part of a client that handles use."""
        return self._shown

    @property
    def async_client(self) -> _AsyncShown:
        """The same for coroutines."""
        return _AsyncShown(self._shown)

    def push(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """Keep jobs, and run them at once in an ``inline`` box."""
        kept = [self._keep(queue, job) for job in jobs]
        for each in self._to_run(kept):
            self._run(each)
        return [each.id for each in kept]

    async def apush(self, queue: str, jobs: Sequence[NewJob]) -> list[str]:
        """The same for coroutines."""
        kept = [self._keep(queue, job) for job in jobs]
        for each in self._to_run(kept):
            await asyncio.to_thread(self._run, each)
        return [each.id for each in kept]

    def _to_run(self, kept: Sequence[Enqueued]) -> Iterator[Enqueued]:
        """Yield the calls to run at once: those just enqueued, then those that waited for them."""
        if not self._inline:
            return
        yield from (each for each in kept if self._is_ready(each))
        while waiting := [each for each in self.enqueued if each.options.get("depends_on") and self._is_ready(each)]:
            yield from waiting

    def state_of(self, each: Enqueued) -> str:
        """Return the state that a server would return for a call."""
        if each.state != "waiting":
            return each.state
        if not self._is_ready(each):
            return "waiting-children"
        return each.state

    def _is_ready(self, each: Enqueued) -> bool:
        """Return whether a call can run now. A call that depends on a failed one can never run."""
        if each.state != "waiting":
            return False
        needed = ids_of(cast("Sequence[str]", each.options.get("depends_on") or ()), "depends_on")
        return all(self._shown.state(job_id) == "completed" for job_id in needed)

    def _keep(self, queue: str, job: NewJob) -> Enqueued:
        options = dict(job.options)
        fields = job_fields(None, options, named=False)  # raises for options that a server would refuse
        unknown = [need for need in fields.get("dependsOn", ()) if self._shown.state(need) == "unknown"]
        if unknown:
            raise ApiError(400, "invalid_input", f"Dependency job not found: {unknown[0]}")
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
        """Run a task until it has succeeded, or has no attempts left."""
        each.state = "active"
        while each.state == "active":
            context = JobContext(_job(each), lambda context: _take_reports(each, context))
            outcome = self._attempt(each, context)
            if isinstance(outcome, Done):
                each.result, each.state = msgspec.json.decode(outcome.result), "completed"
                return
            if isinstance(outcome, Deferred):  # no worker of this group would have the task either
                outcome = Failed(f"There is no task {outcome.task!r} in this group", [], final=True)
            elif isinstance(outcome, Dropped):
                outcome = Failed("The attempt was cancelled", [])
            each.attempts += 1
            each.error, each.stack = outcome.error, outcome.stack
            if outcome.final or context.is_last_attempt:
                each.state = "failed"

    def _attempt(self, each: Enqueued, context: JobContext) -> Outcome:
        """Run one attempt of a task in a new thread, as a worker would, up to its timeout."""
        outcomes: list[Outcome] = []

        def call(context: JobContext) -> Any:
            try:
                task, arguments = self._tasks.of(context)
                result = task.function(**arguments)
                return asyncio.run(_awaited(result)) if task.is_async else result
            except BaseException as error:
                each.exception = error
                raise

        thread = threading.Thread(target=lambda: outcomes.append(run(call, context)), name="penstock-test-task", daemon=True)
        thread.start()
        timeout = context.info.timeout
        thread.join(None if timeout is None else timeout / 1000)
        if outcomes:
            return outcomes[0]
        context.timed_out = True
        context.cancel()
        return timed_out(context, [])


@contextlib.contextmanager
def inline(tasks: Tasks) -> Iterator[TaskBox]:
    """Run tasks when they are enqueued, at once, even those that are due later. Their exceptions are for their handles."""
    with _instead(tasks, TaskBox(tasks, inline=True)) as box:
        yield box


@contextlib.contextmanager
def manual(tasks: Tasks) -> Iterator[TaskBox]:
    """Keep enqueued calls until ``box.drain()``."""
    with _instead(tasks, TaskBox(tasks, inline=False)) as box:
        yield box


@contextlib.contextmanager
def _instead(tasks: Tasks, box: TaskBox) -> Iterator[TaskBox]:
    before, tasks.backend = tasks.backend, box
    try:
        yield box
    finally:
        tasks.backend = before


class _Shown:
    """The part of a client that handles use."""

    def __init__(self, box: TaskBox) -> None:
        self._box = box

    @property
    def jobs(self) -> _Shown:
        return self

    def state(self, job_id: str) -> str:
        return next((self._box.state_of(each) for each in self._box.enqueued if each.id == job_id), "unknown")

    def get(self, job_id: str) -> Job:
        for each in self._box.enqueued:
            if each.id == job_id:
                return _job(each, self._box.state_of(each))
        raise NotFound(404, "job_not_found", "Job not found")

    def wait(self, job_id: str, timeout: Duration = 30.0) -> Waited:
        del timeout
        self.get(job_id)
        each = next(each for each in self._box.enqueued if each.id == job_id)
        if each.state == "waiting":  # waiting would not change it
            raise AssertionError(f"{each.task} has not run: call drain() before you read its result")
        return Waited(completed=each.state == "completed", result=each.result)

    def cancel(self, job_id: str) -> None:
        self.get(job_id)
        self._box.enqueued[:] = [each for each in self._box.enqueued if each.id != job_id]


class _AsyncShown:
    """The same for coroutines."""

    def __init__(self, shown: _Shown) -> None:
        self._shown = shown

    @property
    def jobs(self) -> _AsyncShown:
        return self

    async def get(self, job_id: str) -> Job:
        return self._shown.get(job_id)

    async def state(self, job_id: str) -> str:
        return self._shown.state(job_id)

    async def cancel(self, job_id: str) -> None:
        self._shown.cancel(job_id)

    async def wait(self, job_id: str, timeout: Duration = 30.0) -> Waited:  # noqa: ASYNC109
        return self._shown.wait(job_id, timeout)


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


def _job(each: Enqueued, state: str = "active") -> Job:
    """Return a call as the job that a server would have for it."""
    fields = job_fields({"task": each.task, "args": each.args}, each.options, named=False)
    if not isinstance(fields.get("backoff", 0), int):
        fields["backoff"] = fields["backoff"]["delay"]
    fields |= {
        "id": each.id,
        "queue": each.queue,
        "runAt": each.run_at or 0,
        "state": state,
        "error": each.error,
        "attempts": each.attempts,
        "progress": each.progress,
        "progressMessage": each.progress_message,
        "stacktrace": each.stack or None,
    }
    return msgspec.convert(fields, Job)


def _take_reports(each: Enqueued, context: JobContext) -> None:
    """Keep the reports of a task."""
    reports = context.take_reports()
    if reports is not None:
        if reports.progress is not None:
            each.progress, each.progress_message = reports.progress
        each.logs += reports.lines


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


class Server:
    """A real server on a temporary directory, in a separate process. Use it as a context manager.

    ``options``: more options of ``penstock serve``, for example ``"--durability", "never"``. ``env``: settings as
    environment variables. Those of this process are not passed on.
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
            raise RuntimeError("The server did not start; its output is above")
        self.url = f"http://{address}"
        return self

    def client(self, **more: Any) -> Client:
        """Return a client of the server; arguments as for ``Client``."""
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
    """Return an environment without the server's variables."""
    return {
        name: value for name, value in env.items() if name not in SERVER_VARIABLES and not name.startswith(SERVER_PREFIXES)
    }
